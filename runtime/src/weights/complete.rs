//! Whether a checkpoint holds exactly the tensors that a model needs.

use super::checkpoint::Checkpoint;
use super::fault::Fault;
use super::load::has_experts;
use super::naming::Naming;
use moetwin_models::spec::{Attention, Ffn, GqaSpec, LayerSpec, MlaSpec, MoeSpec, QkNorm};
use moetwin_models::{DType, ModelSpec, WeightFormat, WeightRef, WeightRole};

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
    "model.visual.",
    "model.multi_modal_projector.",
];

/// Every weight of a model in the order of a forward pass, layer by layer; the head last.
pub fn weights_of(spec: &ModelSpec) -> Vec<WeightRef> {
    let plain = match spec.dtype {
        DType::F16 => WeightFormat::F16,
        DType::F32 => WeightFormat::F32,
        DType::Bf16 | DType::Fp8 | DType::I32 => WeightFormat::Bf16,
    };
    let mut list = List { plain, layer: None, weights: Vec::new() };
    list.matrix(WeightRole::Embedding, spec.embedding_format);
    for (index, layer) in spec.layers.iter().enumerate() {
        list.layer = u16::try_from(index).ok();
        list.layer(layer);
    }
    list.layer = None;
    list.vectors(&[(WeightRole::FinalNorm, true)]);
    list.matrix(WeightRole::LmHead, spec.embedding_format);
    list.weights
}

struct List {
    plain: WeightFormat,
    layer: Option<u16>,
    weights: Vec<WeightRef>,
}

impl List {
    fn matrix(&mut self, role: WeightRole, format: WeightFormat) {
        self.weights.push(WeightRef { role, layer: self.layer, format });
    }
    fn vectors(&mut self, roles: &[(WeightRole, bool)]) {
        for (role, _) in roles.iter().filter(|(_, there)| *there) {
            self.matrix(*role, self.plain);
        }
    }
    fn layer(&mut self, layer: &LayerSpec) {
        self.vectors(&[(WeightRole::InputNorm, true)]);
        match &layer.attention {
            Attention::Mla(mla) => self.mla(mla),
            Attention::Gqa(gqa) => self.gqa(gqa),
            Attention::Linear(linear) => self.matrix(WeightRole::Other(0), linear.format),
        }
        self.vectors(&[(WeightRole::PostAttentionNorm, true)]);
        match &layer.ffn {
            Ffn::Dense(dense) => {
                self.matrix(WeightRole::DenseGateUp, dense.format);
                self.matrix(WeightRole::DenseDown, dense.format);
            }
            Ffn::Moe(moe) => self.moe(moe),
        }
    }
    fn mla(&mut self, mla: &MlaSpec) {
        if mla.q_lora.is_some() {
            self.matrix(WeightRole::QaKva, mla.format);
            self.matrix(WeightRole::Qb, mla.format);
        } else {
            self.matrix(WeightRole::QDirect, mla.format);
            self.matrix(WeightRole::Kva, mla.format);
        }
        self.matrix(WeightRole::KvB, mla.format);
        self.matrix(WeightRole::O, mla.format);
        self.vectors(&[
            (WeightRole::QaNorm, mla.q_lora.is_some()),
            (WeightRole::KvaNorm, true),
            (WeightRole::QaKvaBias, mla.bias),
            (WeightRole::OBias, mla.bias),
        ]);
    }
    fn gqa(&mut self, gqa: &GqaSpec) {
        self.matrix(WeightRole::Qkv, gqa.format);
        self.matrix(WeightRole::O, gqa.format);
        let normed = gqa.qk_norm != QkNorm::None;
        self.vectors(&[
            (WeightRole::QkvBias, gqa.qkv_bias),
            (WeightRole::QNorm, normed),
            (WeightRole::KNorm, normed),
            (WeightRole::Sinks, gqa.sinks),
            (WeightRole::OBias, gqa.o_bias),
        ]);
    }
    fn moe(&mut self, moe: &MoeSpec) {
        self.matrix(WeightRole::Router, self.plain);
        self.vectors(&[(WeightRole::RouterBias, moe.router.logits_bias), (WeightRole::CorrectionBias, moe.router.correction_bias)]);
        self.matrix(WeightRole::ExpertsGateUp, moe.format);
        self.matrix(WeightRole::ExpertsDown, moe.format);
        self.vectors(&[(WeightRole::ExpertsGateUpBias, moe.expert_bias), (WeightRole::ExpertsDownBias, moe.expert_bias)]);
        if let Some(shared) = &moe.shared {
            self.matrix(WeightRole::SharedGateUp, shared.format);
            self.matrix(WeightRole::SharedDown, shared.format);
            self.vectors(&[(WeightRole::SharedGate, shared.gated)]);
        }
    }
}

/// What is wrong: missing, misshapen and wrongly typed tensors in the order of [`weights_of`], then extra ones by name.
pub fn faults(checkpoint: &Checkpoint, spec: &ModelSpec, layers: Layers) -> Vec<Fault> {
    let naming = Naming::detect(spec, &|name| checkpoint.contains(name));
    let mut used = vec![false; checkpoint.len()];
    let mut faults = Vec::new();
    for weight in weights_of(spec) {
        let copies = if has_experts(weight.role) && naming.experts_apart() { experts(spec, weight) } else { 1 };
        for expert in 0..copies {
            match naming.sources(weight, expert) {
                Err(e) => {
                    faults.push(Fault::NoLoader { weight: format!("{:?} of layer {}", e.role, e.layer.unwrap_or(0)) });
                    break;
                }
                Ok(sources) => {
                    for expected in sources.iter().flat_map(|s| s.tensors()) {
                        if let Some((position, _)) = checkpoint.locate(&expected.name) {
                            used[position] = true;
                        }
                        faults.extend(expected.find(checkpoint).err());
                    }
                }
            }
        }
    }
    // Of gate and up stored in one tensor both halves find the same fault.
    faults.dedup();
    let extra = Extra { checkpoint, naming: &naming, layers };
    let unused = checkpoint.tensors().zip(&used).filter(|(t, used)| !**used && !extra.passed_over(t.name));
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
        let wrapper = self.naming.decoder() != "model.";
        let outside = wrapper && OUTSIDE_MODULES.iter().any(|m| name.starts_with(m));
        tied_head || frequencies || outside || name.starts_with("mtp.") || self.further_layer(name)
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
