//! A machine that obeys a program in virtual time.

pub mod cost;
