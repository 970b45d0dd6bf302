//! The machines that ship with the project.

mod figures;
mod nvlink;
mod parts;
mod pcie;

use super::Machine;

/// A built-in machine's name and constructor.
type Entry = (&'static str, fn() -> Machine);

/// In the order shown to people.
const MACHINES: &[Entry] = &[("8x-rtx-pro-6000-server", pcie::rtx_pro_6000_server), ("8x-h200-sxm", nvlink::h200)];

/// The built-in machine of this name.
pub fn find(name: &str) -> Option<Machine> {
    MACHINES.iter().find(|entry| entry.0 == name).map(|entry| entry.1())
}

/// Names of the built-in machines.
pub fn names() -> impl Iterator<Item = &'static str> {
    MACHINES.iter().map(|entry| entry.0)
}

/// All built-in machines.
pub fn list() -> Vec<Machine> {
    MACHINES.iter().map(|entry| entry.1()).collect()
}
