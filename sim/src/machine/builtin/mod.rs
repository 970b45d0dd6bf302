//! The machines that ship with the project.

mod figures;
mod fitted;
mod geforce;
mod nvlink;
mod parts;
mod pcie;
mod workstation;

use super::Machine;

/// A built-in machine's name and constructor.
type Entry = (&'static str, fn() -> Machine);

/// In the order shown to people: the default first, then by name.
const MACHINES: &[Entry] = &[
    ("8x-rtx-pro-6000-server", workstation::server),
    ("2x-rtx-4090", geforce::rtx_4090_pair),
    ("4x-gb200", nvlink::gb200),
    ("8x-a100-pcie-40gb", geforce::a100_pcie),
    ("8x-a100-sxm", nvlink::a100),
    ("8x-b200-sxm", nvlink::b200),
    ("8x-b300-sxm", nvlink::b300),
    ("8x-h100-sxm", nvlink::h100),
    ("8x-h200-sxm", nvlink::h200),
    ("8x-h800-sxm", nvlink::h800),
    ("8x-l40s", geforce::l40s),
    ("8x-rtx-4090-cloud", geforce::rtx_4090_cloud),
    ("8x-rtx-4090-epyc", geforce::rtx_4090_epyc),
    ("8x-rtx-4090-hpc", geforce::rtx_4090_hpc),
    ("8x-rtx-5090-dual-turin", geforce::rtx_5090_dual_turin),
    ("8x-rtx-pro-6000-3switch", workstation::three_switch),
    ("8x-rtx-pro-6000-dual-turin", workstation::dual_turin),
    ("8x-rtx-pro-6000-esc8000a", workstation::esc8000a),
    ("8x-rtx-pro-6000-max-q", workstation::max_q),
    ("8x-rtx-pro-6000-workstation", workstation::workstation),
    ("8x-rtx-pro-6000-wrx90-2switch", workstation::wrx90_2switch),
    ("8x-rtx-pro-6000-wrx90-shared-root", workstation::wrx90_shared_root),
    ("8x-v100-sxm2", nvlink::v100),
];

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
