//! Signs that a virtual machine hides the topology: what it shows then is no fact about the hardware.

use super::Kind;
use super::evidence::{Sign, SignKind};
use super::merge::Merged;
use crate::machine::PathClass;

/// Direct-attached GPUs that a host bridge has lanes for: 32 lanes a root complex on EPYC, 16 on Intel.
const MOST_BELOW_ONE_BRIDGE: usize = 2;

/// All signs in what files say together.
pub(super) fn signs(merged: &Merged) -> Vec<String> {
    let mut signs = merged.hidden.clone();
    signs.extend(one_bridge(merged).or(far_in_one_node(merged)).map(|text| Sign::new(SignKind::Classes, text)));
    let mut kinds: Vec<(SignKind, String, usize)> = Vec::new();
    for sign in signs {
        match kinds.iter_mut().find(|(kind, _, _)| *kind == sign.kind) {
            Some((_, _, more)) => *more += 1,
            None => kinds.push((sign.kind, sign.text, 0)),
        }
    }
    kinds.into_iter().map(|(_, text, more)| if more == 0 { text } else { format!("{text}, and {more} more like it") }).collect()
}

/// Only matrices are judged: a tree shows the bridge itself.
fn matrix(merged: &Merged) -> bool {
    merged.kinds.iter().any(|(kind, _)| *kind == Kind::SmiTopo) && merged.tree.is_none()
}

/// Every pair that is not NVLink shows one host bridge.
fn one_bridge(merged: &Merged) -> Option<String> {
    let told: Vec<PathClass> =
        merged.pairs.values().filter(|pair| pair.nvlink.is_none()).filter_map(|pair| pair.classes.as_ref()?.value.single()).collect();
    let n = merged.gpus.len();
    let nvlinks = merged.pairs.values().any(|pair| pair.nvlink.is_some());
    if !matrix(merged) || n <= MOST_BELOW_ONE_BRIDGE || told.is_empty() || told.iter().any(|class| *class != PathClass::Phb) {
        return None;
    }
    let why = if nvlinks {
        "a board of NVLink GPUs has several"
    } else {
        "a host bridge has lanes for two such GPUs, or few more if they are narrow"
    };
    Some(format!("all {n} GPUs show one host bridge (PHB) although {why}: virtual machines show this for anything"))
}

/// GPUs of one NUMA node that show SYS to each other.
fn far_in_one_node(merged: &Merged) -> Option<String> {
    let numa = |gpu: usize| merged.gpus[gpu].numa.as_ref().map(|told| told.value);
    merged.pairs.iter().find_map(|(&(a, b), pair)| {
        let classes = pair.classes.as_ref()?;
        let node = numa(a).filter(|node| Some(*node) == numa(b))?;
        (classes.value.single() == Some(PathClass::Sys) && pair.nvlink.is_none()).then(|| {
            format!("GPU {a} and GPU {b} show SYS although both are of NUMA node {node} ({}): virtual machines show this", classes.place)
        })
    })
}
