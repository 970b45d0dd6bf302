//! Whether a checkpoint holds exactly the tensors that a model needs.

use super::checkpoint::Checkpoint;
use super::fault::Fault;
use super::load::has_experts;
use super::naming::Naming;
use super::source::Expected;
use moetwin_models::build::{self, BuildError};
use moetwin_models::spec::Ffn;
use moetwin_models::{BuildOptions, ModelSpec, Phase, Step, Tensor, TensorKind, WeightRef};

/// Which decoder layers of a checkpoint are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layers {
    /// All: a tensor of a further layer is extra.
    #[default]
    All,
    /// The first ones, as many as the model has; further ones are passed over.
    First,
}

/// Modules beside the text decoder that wrappers carry; the graph leaves them out.
const OUTSIDE_MODULES: &[&str] = &[
    "vision_tower.",
    "vision_model.",
    "visual.",
    "mm_projector.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.vision_model.",
    "model.visual.",
    "model.mm_projector.",
    "model.multi_modal_projector.",
];

/// Every weight of a model, in the order in which a forward pass meets them: those of its graph.
pub fn weights_of(spec: &ModelSpec) -> Result<Vec<WeightRef>, BuildError> {
    let graph = build::forward(spec, &Step::uniform(Phase::Decode, 1, 0), &BuildOptions::default())?;
    let weight = |t: &Tensor| match t.kind {
        TensorKind::Weight(weight) => Some(weight),
        _ => None,
    };
    Ok(graph.tensors.iter().filter_map(|(_, t)| weight(t)).collect())
}

/// What is wrong: missing, misshapen and wrongly typed tensors in the order of [`weights_of`], then extra ones by name.
pub fn faults(checkpoint: &Checkpoint, spec: &ModelSpec, layers: Layers) -> Vec<Fault> {
    let naming = Naming::detect(spec, &|name| checkpoint.contains(name));
    let mut used = vec![false; checkpoint.len()];
    let mut faults = Vec::new();
    let weights = match weights_of(spec) {
        Ok(weights) => weights,
        Err(e) => return vec![Fault::Model { model: spec.name.clone(), reason: e.to_string() }],
    };
    for weight in weights {
        let copies = if has_experts(weight.role) && naming.experts_apart() { experts(spec, weight) } else { 1 };
        for expert in 0..copies {
            match naming.sources(weight, expert) {
                Err(e) => {
                    let place = e.layer.map_or_else(String::new, |l| format!(" of layer {l}"));
                    faults.push(Fault::NoLoader { weight: format!("{:?}{place}", e.role), format: weight.format.name() });
                    break;
                }
                Ok(sources) => {
                    let needed: Vec<Expected<'_>> = sources.iter().flat_map(|s| s.tensors()).collect();
                    for (i, expected) in needed.iter().enumerate() {
                        // Gate and up may share a tensor, whose faults are told once.
                        if needed[..i].iter().any(|e| e.name == expected.name) {
                            continue;
                        }
                        if let Some((position, _)) = checkpoint.locate(&expected.name) {
                            used[position] = true;
                        }
                        faults.extend(expected.find(checkpoint).err());
                    }
                }
            }
        }
    }
    // Tensors without elements carry nothing: transformers writes them for a shared expert of no width.
    let extra = Extra { checkpoint, naming: &naming, layers };
    let unused = checkpoint.tensors().zip(&used).filter(|(t, used)| !**used && !extra.passed_over(t.name) && !t.shape.contains(&0));
    faults.extend(unused.map(|(t, _)| Fault::Extra { tensor: t.name.to_string(), found: t.dtype, shape: t.shape.to_vec() }));
    faults
}

fn experts(spec: &ModelSpec, weight: WeightRef) -> u32 {
    match weight.layer.and_then(|l| spec.layers.get(usize::from(l))).map(|l| &l.ffn) {
        Some(Ffn::Moe(moe)) => moe.experts,
        _ => 1,
    }
}

/// What may be in a checkpoint that the graph does not use.
struct Extra<'a> {
    checkpoint: &'a Checkpoint,
    naming: &'a Naming<'a>,
    layers: Layers,
}

impl Extra<'_> {
    fn passed_over(&self, name: &str) -> bool {
        let spec = self.naming.spec();
        let tied_head = spec.tied_embeddings && name.strip_prefix(self.naming.head()) == Some(".weight");
        // Buffers that older versions of transformers saved; they follow from the configuration.
        let frequencies = name.ends_with(".rotary_emb.inv_freq");
        // The gate of such a shared expert has nothing to scale.
        let idle_gate = name.strip_suffix("shared_expert_gate.weight").is_some_and(|block| {
            self.checkpoint.get(&format!("{block}shared_expert.down_proj.weight")).is_some_and(|down| down.shape.contains(&0))
        });
        let wrapper = self.naming.decoder() != "model.";
        let outside = wrapper && OUTSIDE_MODULES.iter().any(|m| name.starts_with(m));
        tied_head || frequencies || idle_gate || outside || name.starts_with("mtp.") || self.further_layer(name)
    }
    /// A layer past the decoder's: of a cut model any, else one that predicts further tokens (it carries `eh_proj`).
    fn further_layer(&self, name: &str) -> bool {
        let start = format!("{}layers.", self.naming.decoder());
        let Some((index, _)) = name.strip_prefix(&start).and_then(|rest| rest.split_once('.')) else { return false };
        let Ok(layer) = index.parse::<usize>() else { return false };
        layer >= self.naming.spec().layers.len()
            && (self.layers == Layers::First || self.checkpoint.contains(&format!("{start}{index}.eh_proj.weight")))
    }
}
