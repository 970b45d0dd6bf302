//! Strategies and oracles shared by the property tests and the fuzz targets.

pub mod configs;
pub mod models;
