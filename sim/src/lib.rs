//! A machine that obeys a program in virtual time.

pub mod breakdown;
pub mod calibrate;
pub mod collective;
pub mod cost;
pub mod events;
pub mod exec;
pub mod explore;
pub mod import;
pub mod load;
pub mod machine;
pub mod measured;
pub mod network;
pub mod profile;
pub mod serving;
pub mod speculation;
pub mod time;
pub mod timeline;
pub mod topology;
pub mod trace;

pub use events::EventQueue;
pub use time::{Duration, Time};
