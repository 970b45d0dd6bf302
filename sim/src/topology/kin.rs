//! The built-in machine that an imported one is most like: it lends what no topology tells, launch costs and protocol figures.

use crate::machine::{self, CpuFamily, GpuModel, LinkKind, Machine, VertexKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// How GPUs are joined by NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fabric {
    None,
    Pairs,
    Switch,
}

/// What decides likeness.
pub(super) struct Traits<'a> {
    pub(super) model: &'a GpuModel,
    pub(super) fabric: Fabric,
    pub(super) peer_access: bool,
    /// GPUs stand below PCIe switches.
    pub(super) switched: bool,
    pub(super) sockets: usize,
    /// CPU family, where a file tells.
    pub(super) cpu: Option<CpuFamily>,
}

fn fabric(machine: &Machine) -> Fabric {
    let has = |kind: VertexKind| machine.vertices.iter().any(|(_, vertex)| vertex.part == kind);
    match () {
        () if has(VertexKind::NvSwitch) => Fabric::Switch,
        () if machine.links.iter().any(|(_, link)| matches!(link.kind, LinkKind::NvLink { .. })) => Fabric::Pairs,
        () => Fabric::None,
    }
}

fn likeness(traits: &Traits<'_>, machine: &Machine) -> u32 {
    let Some(model) = machine.models.first() else { return 0 };
    let count = |test: fn(VertexKind) -> bool| machine.vertices.iter().filter(|(_, vertex)| test(vertex.part)).count();
    let switched = count(|part| matches!(part, VertexKind::PcieSwitch { .. })) > 0;
    let sockets = count(|part| matches!(part, VertexKind::Socket { .. }));
    // NVLink or not and the GPU's generation decide which protocols are used and how fast they are; the rest breaks ties.
    let own = fabric(machine);
    [
        ((own == Fabric::None) == (traits.fabric == Fabric::None), 60),
        (own == traits.fabric, 15),
        (model.name == traits.model.name, 30),
        (model.sm() == traits.model.sm(), 20),
        (model.sm_major == traits.model.sm_major, 10),
        (model.pcie_gen == traits.model.pcie_gen, 16),
        (machine.peer_access.value == traits.peer_access, 8),
        (switched == traits.switched, 4),
        (sockets == traits.sockets, 2),
        (traits.cpu == Some(machine.collectives.nccl.cpu.value), 6),
        // Of whom little is assumed lends best.
        (machine.assumptions.is_empty(), 3),
        (machine.assumptions.len() < 2, 1),
    ]
    .into_iter()
    .filter_map(|(same, weight)| same.then_some(weight))
    .sum()
}

/// The most like built-in machine; the first of equals.
pub(super) fn nearest(traits: &Traits<'_>) -> Option<Machine> {
    let mut best: Option<(u32, Machine)> = None;
    for machine in machine::list() {
        let likeness = likeness(traits, &machine);
        if best.as_ref().is_none_or(|(most, _)| likeness > *most) {
            best = Some((likeness, machine));
        }
    }
    best.map(|(_, machine)| machine)
}

/// The same figures, assumed here because the other machine has them.
pub(super) fn lent<T: Serialize + DeserializeOwned>(figures: &T, from: &str) -> Option<T> {
    let mut value = serde_json::to_value(figures).ok()?;
    relabel(&mut value, from);
    serde_json::from_value(value).ok()
}

fn relabel(value: &mut Value, from: &str) {
    match value {
        Value::Object(fields) => {
            if let (true, Some(source)) = (fields.contains_key("origin"), fields.get("source").and_then(Value::as_str)) {
                let source = format!("as {from}: {source}");
                fields.insert("origin".into(), "assumed".into());
                fields.insert("source".into(), source.into());
            }
            for (_, inner) in fields.iter_mut() {
                relabel(inner, from);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| relabel(item, from)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Origin, find, gpu_named};

    #[test]
    fn built_ins_are_most_like_themselves_or_a_twin() {
        for name in ["8x-h100-sxm", "8x-a100-sxm", "8x-l40s", "8x-rtx-5090-dual-turin", "8x-v100-sxm2"] {
            let machine = find(name).expect("built in");
            let count = |test: fn(VertexKind) -> bool| machine.vertices.iter().filter(|(_, vertex)| test(vertex.part)).count();
            let traits = Traits {
                model: &machine.models[0],
                fabric: fabric(&machine),
                peer_access: machine.peer_access.value,
                switched: count(|part| matches!(part, VertexKind::PcieSwitch { .. })) > 0,
                sockets: count(|part| matches!(part, VertexKind::Socket { .. })),
                cpu: Some(machine.collectives.nccl.cpu.value),
            };
            assert_eq!(nearest(&traits).map(|kin| kin.name).as_deref(), Some(name));
        }
        let model = gpu_named("GeForce RTX 3090").expect("in the table");
        let traits = Traits { model, fabric: Fabric::None, peer_access: false, switched: false, sockets: 2, cpu: None };
        assert!(nearest(&traits).is_some_and(|kin| kin.models[0].pcie_gen == 4 && !kin.peer_access.value));
    }

    #[test]
    fn lent_figures_are_assumed_and_name_their_owner() {
        let machine = find("8x-h100-sxm").expect("built in");
        let lent = lent(&machine.collectives, "8x-h100-sxm").expect("the same type");
        assert_eq!(lent.kernel.value, machine.collectives.kernel.value);
        assert_eq!(lent.kernel.origin, Origin::Assumed);
        assert!(lent.nccl.cpu.source.starts_with("as 8x-h100-sxm: "));
    }
}
