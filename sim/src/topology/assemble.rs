//! From joined evidence to a machine: models, links, rates, and a sentence for whatever is assumed.

mod build;
mod facts;

use super::merge::Merged;
use super::{Options, TopologyError, shape};
use crate::machine::{Machine, VertexKind, check};

/// Builds the machine. Every gap is filled and said.
pub(super) fn machine(merged: Merged, hidden: &[String], options: &Options) -> Result<Machine, TopologyError> {
    let (matrix, chosen) = merged.settle()?;
    let tree = merged.tree.as_ref().map(|(_, tree)| tree.as_slice());
    let numas = shape::shape(&matrix, merged.gpus.len(), tree);
    let mut facts = facts::Facts::new(&merged, options);
    facts.hidden(hidden);
    facts.chosen_classes(&matrix, &chosen);
    let decided = facts.decide(&numas)?;
    let machine = build::build(&merged, options, &numas, decided, facts.into_assumptions());
    let switches = machine.vertices.iter().filter(|(_, vertex)| matches!(vertex.part, VertexKind::PcieSwitch { .. })).count();
    if let Some(number) = options.same_chip.iter().flatten().find(|&&number| number as usize >= switches) {
        let there = match switches {
            0 => "there is none".to_owned(),
            1 => "there is one, switch 0".to_owned(),
            n => format!("there are {n}, 0 to {}", n - 1),
        };
        return Err(TopologyError::new(merged.place, format!("--same-chip names PCIe switch {number}, and {there}")));
    }
    match check(&machine) {
        Ok(()) => Ok(machine),
        Err(error) => Err(TopologyError::new(merged.place, format!("the machine these files describe is faulty: {error}"))),
    }
}
