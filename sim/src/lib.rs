//! A machine that obeys a program in virtual time.

pub mod breakdown;
pub mod cost;
pub mod events;
pub mod exec;
pub mod time;
pub mod trace;
