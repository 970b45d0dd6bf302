//! A machine that obeys a program in virtual time.

pub mod calibrate;
pub mod collective;
pub mod cost;
pub mod events;
pub mod import;
pub mod machine;
pub mod network;
pub mod time;

pub use events::EventQueue;
pub use time::{Duration, Time};
