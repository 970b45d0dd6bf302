//! Topology readers: any bytes are refused with a place, or give a machine that reads back and whose classes print and import the same.

use crate::check_reason;
use moetwin_sim::machine::{self, Machine, PathClass};
use moetwin_sim::network::Network;
use moetwin_sim::topology::{Imported, Options, Source, TopologyError, import, print_topo};
use proptest::prelude::*;
use std::fmt::Write as _;

/// A whole machine to join others with: its GPUs are eight on two sockets.
const OTHER: &str = include_str!("../../topologies/esc8000a-topo.txt");

/// Any bytes as the output of some tool, alone and beside another file.
pub fn check_import(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let source = Source { label: "input".into(), text: text.into() };
    let other = Source { label: "other".into(), text: OTHER.into() };
    let alone = import(std::slice::from_ref(&source), &Options::default());
    judge(&alone, text);
    let both = import(&[source, other], &Options::default());
    judge(&both, text);
    // A log of measurements names no GPUs, which the file beside it may.
    let no_gpus = alone.as_ref().is_err_and(|error| error.message == "no GPU is in it");
    assert!(alone.is_ok() || no_gpus || both.is_err(), "a file that is refused alone is taken beside another");
}

fn judge(result: &Result<Imported, TopologyError>, text: &str) {
    match result {
        Err(error) => {
            check_reason(&error.message);
            if error.place.file == "input" {
                assert!(error.place.line >= 1 && error.place.line <= text.lines().count() + 1, "{error}: no such line");
                assert!(error.place.column >= 1, "{error}");
            }
        }
        Ok(imported) => {
            let machine = &imported.machine;
            let again = machine::from_json(&machine.to_json()).unwrap_or_else(|e| panic!("its own file is refused: {e}"));
            assert_eq!(&again, machine);
            check_printed(machine);
        }
    }
}

/// A machine's printed matrix imports to the same classes and NVLinks.
pub fn check_printed(machine: &Machine) {
    let printed = print_topo(machine);
    let source = Source { label: "printed".into(), text: printed.clone() };
    let again = import(&[source], &Options::default()).unwrap_or_else(|e| panic!("{e}\n{printed}")).machine;
    assert_eq!(again.gpu_count(), machine.gpu_count(), "{printed}");
    let (before, after) = (Network::new(machine), Network::new(&again));
    for a in 0..machine.gpu_count() {
        for b in 0..machine.gpu_count() {
            if a != b {
                assert_eq!(after.class(a, b), before.class(a, b), "GPU {a} and GPU {b}:\n{printed}");
                assert_eq!(after.nvlink_lanes(a, b), before.nvlink_lanes(a, b), "GPU {a} and GPU {b}:\n{printed}");
            }
        }
    }
}

/// GPUs in a random tree, as a matrix of classes: for each, the numbers of its NUMA node, host bridge, switch and leaf switch.
#[derive(Clone, Debug)]
pub struct Forest {
    places: Vec<[u8; 4]>,
}

impl Forest {
    /// How near two GPUs are: the first level at which their places differ.
    pub fn class(&self, a: usize, b: usize) -> PathClass {
        let (x, y) = (self.places[a], self.places[b]);
        match (0..4).find(|level| x[*level] != y[*level]) {
            Some(0) => PathClass::Sys,
            Some(1) => PathClass::Node,
            Some(2) => PathClass::Phb,
            Some(_) => PathClass::Pxb,
            None => PathClass::Pix,
        }
    }
    /// Number of GPUs.
    pub fn gpus(&self) -> usize {
        self.places.len()
    }
    /// As `nvidia-smi topo -m` prints it, between lines that people paste along.
    pub fn print(&self, numa: bool, tabs: bool) -> String {
        let gap = if tabs { "\t" } else { "    " };
        let mut text = String::from("$ nvidia-smi topo -m\n\u{1b}[4m");
        for gpu in 0..self.gpus() {
            let _ = write!(text, "{gap}GPU{gpu}");
        }
        if numa {
            let _ = write!(text, "{gap}CPU Affinity{gap}NUMA Affinity{gap}GPU NUMA ID");
        }
        text.push_str("\u{1b}[0m\n");
        for a in 0..self.gpus() {
            let _ = write!(text, "GPU{a}");
            for b in 0..self.gpus() {
                let _ = write!(text, "{gap}{}", if a == b { " X " } else { self.class(a, b).name() });
            }
            if numa {
                let _ = write!(text, "{gap}0-7,16-23{gap}{}{gap}N/A", self.places[a][0]);
            }
            text.push('\n');
        }
        text.push_str(
            "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes\n",
        );
        text
    }
}

/// A random tree of one to twelve GPUs.
pub fn any_forest() -> impl Strategy<Value = Forest> {
    proptest::collection::vec([0u8..3, 0u8..2, 0u8..2, 0u8..2], 1..=12).prop_map(|mut places| {
        // GPUs are numbered along the bus, so neighbours stand together.
        places.sort_unstable();
        Forest { places }
    })
}

macro_rules! targets {
    ($($name:ident: $doc:literal),* $(,)?) => {
        $(
            #[doc = $doc]
            pub fn $name(data: &[u8]) {
                check_import(data);
            }
        )*
    };
}

targets! {
    check_import_smi: "`nvidia-smi topo -m`; readers go by content, so each target starts from a corpus of its own.",
    check_import_nccl: "NCCL's topology and graph XML.",
    check_import_lspci: "`lspci -vv`.",
    check_import_lspci_tree: "`lspci -tv`.",
    check_import_p2p: "`p2pBandwidthLatencyTest`.",
    check_import_log: "nccl-tests logs.",
}
