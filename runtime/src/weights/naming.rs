//! How checkpoints of each family name the tensors that make up a weight, and how they are laid out there.

use super::source::{Encoding, FP8_SCALE_NAME, FP8_SCALE_NAME_COMPRESSED, Matrix, Source, View};
use moetwin_models::spec::{Attention, DenseSpec, Ffn, GqaSpec, LayerSpec, MlaSpec, MoeSpec, QkNorm, SharedExpertSpec};
use moetwin_models::{ModelSpec, WeightFormat, WeightRef, WeightRole};

/// How the routed experts of a layer are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertNames {
    /// A module a projection and expert: `experts.E.NAME`.
    Each {
        /// Name of the gate projection.
        gate: &'static str,
        /// Name of the up projection.
        up: &'static str,
        /// Name of the down projection.
        down: &'static str,
    },
    /// All experts stacked: `experts.gate_up_proj[E, gate | up, hidden]`, `experts.down_proj[E, hidden, intermediate]`.
    Stacked,
    /// gpt-oss: stacked, transposed, gate and up in alternate columns: `experts.gate_up_proj[E, hidden, 2 * intermediate]`,
    /// `experts.down_proj[E, intermediate, hidden]`; in MXFP4 not transposed, as `_blocks` and `_scales`.
    Interleaved,
}

const PROJ_NAMES: ExpertNames = ExpertNames::Each { gate: "gate_proj", up: "up_proj", down: "down_proj" };
const NUMBERED_NAMES: ExpertNames = ExpertNames::Each { gate: "w1", up: "w3", down: "w2" };

/// The names one checkpoint uses. Families differ, and so do versions of the library that wrote the files; what is there decides.
#[derive(Clone, Debug)]
pub struct Naming<'s> {
    spec: &'s ModelSpec,
    /// What precedes `layers.`, `embed_tokens` and `norm`.
    decoder: String,
    /// The head's module.
    head: String,
    /// The feed-forward module of a mixture-of-experts layer.
    moe: &'static str,
    /// The router's module in it.
    router: &'static str,
    /// The shared expert's module in it.
    shared: &'static str,
    experts: ExpertNames,
    /// FP8 multipliers are named as compressed-tensors does.
    compressed_fp8: bool,
}

/// A weight that no checkpoint naming is known for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no checkpoint naming is known for {role:?}{} of {model_type}", .layer.map(|l| format!(" of layer {l}")).unwrap_or_default())]
pub struct NoNaming {
    /// The weight's role.
    pub role: WeightRole,
    /// Its layer.
    pub layer: Option<u16>,
    /// The model's type.
    pub model_type: String,
}

impl<'s> Naming<'s> {
    /// The names to look for, given what is there. Where nothing tells, the family's own naming.
    pub fn detect(spec: &'s ModelSpec, has: &dyn Fn(&str) -> bool) -> Self {
        let naming = Self::detect_modules(spec, has);
        Self { compressed_fp8: naming.finds_compressed_fp8(has), ..naming }
    }
    fn detect_modules(spec: &'s ModelSpec, has: &dyn Fn(&str) -> bool) -> Self {
        let prefix = &spec.tensor_prefix;
        // Wrappers put the decoder under `language_model.`; transformers 5 moves that inside `model.`.
        let decoders = [format!("{prefix}model."), "model.".into(), "model.language_model.".into(), "language_model.model.".into()];
        let decoder = pick(&decoders, |d| has(&format!("{d}embed_tokens.weight"))).clone();
        let heads = [format!("{prefix}lm_head"), "lm_head".into(), "language_model.lm_head".into()];
        let head = pick(&heads, |h| has(&format!("{h}.weight"))).clone();
        let mut naming = Self::family(spec, decoder, head);
        let Some(layer) = spec.layers.iter().position(|l| matches!(l.ffn, Ffn::Moe(_))) else { return naming };
        let layer = naming.layer(layer);
        let own = (naming.moe, naming.experts);
        let stacked = if own.1 == ExpertNames::Interleaved { own.1 } else { ExpertNames::Stacked };
        let mut candidates = vec![own];
        for moe in ["mlp", "block_sparse_moe"] {
            candidates.extend([(moe, PROJ_NAMES), (moe, NUMBERED_NAMES), (moe, stacked)]);
        }
        (naming.moe, naming.experts) = *pick(&candidates, |(moe, experts)| {
            let start = format!("{layer}{moe}.experts.");
            match experts {
                ExpertNames::Each { gate, .. } => {
                    ["weight", "weight_packed"].iter().any(|suffix| has(&format!("{start}0.{gate}.{suffix}")))
                }
                _ => ["", "_blocks"].iter().any(|suffix| has(&format!("{start}gate_up_proj{suffix}"))),
            }
        });
        let block = format!("{layer}{}.", naming.moe);
        naming.router = *pick(&[naming.router, "gate", "router"], |r| has(&format!("{block}{r}.weight")));
        naming
    }
    /// Whether the first FP8 module that has multipliers names them as compressed-tensors does.
    fn finds_compressed_fp8(&self, has: &dyn Fn(&str) -> bool) -> bool {
        let fp8 = |format: WeightFormat| matches!(format, WeightFormat::Fp8Block { .. });
        let down = match self.experts {
            ExpertNames::Each { down, .. } => down,
            ExpertNames::Stacked | ExpertNames::Interleaved => "down_proj",
        };
        let named = |(index, layer): (usize, &LayerSpec)| {
            let attention = match &layer.attention {
                Attention::Mla(mla) => fp8(mla.format),
                Attention::Gqa(gqa) => fp8(gqa.format),
                Attention::Linear(_) => false,
            };
            let (ffn, module) = match &layer.ffn {
                Ffn::Dense(dense) => (fp8(dense.format), "mlp.down_proj".to_string()),
                Ffn::Moe(moe) => (fp8(moe.format), format!("{}.experts.0.{down}", self.moe)),
            };
            let modules = [attention.then(|| "self_attn.o_proj".to_string()), ffn.then_some(module)];
            modules.into_iter().flatten().find_map(|module| {
                let stored = |name: &str| has(&format!("{}{module}.{name}", self.layer(index)));
                (stored(FP8_SCALE_NAME) || stored(FP8_SCALE_NAME_COMPRESSED)).then(|| !stored(FP8_SCALE_NAME))
            })
        };
        self.spec.layers.iter().enumerate().find_map(named).unwrap_or(false)
    }
    /// The naming of a model type, as its checkpoints are published.
    fn family(spec: &'s ModelSpec, decoder: String, head: String) -> Self {
        let base =
            Self { spec, decoder, head, moe: "mlp", router: "gate", shared: "shared_experts", experts: PROJ_NAMES, compressed_fp8: false };
        match spec.model_type.as_str() {
            "mixtral" => Self { moe: "block_sparse_moe", experts: NUMBERED_NAMES, ..base },
            "gpt_oss" => Self { router: "router", experts: ExpertNames::Interleaved, ..base },
            t if t.starts_with("qwen2") || t.starts_with("qwen3") => Self { shared: "shared_expert", ..base },
            _ => base,
        }
    }
    /// The model.
    pub fn spec(&self) -> &'s ModelSpec {
        self.spec
    }
    /// What precedes `layers.`.
    pub(crate) fn decoder(&self) -> &str {
        &self.decoder
    }
    /// The head's module.
    pub(crate) fn head(&self) -> &str {
        &self.head
    }
    /// Whether each routed expert has tensors of its own.
    pub(crate) fn experts_apart(&self) -> bool {
        matches!(self.experts, ExpertNames::Each { .. })
    }
    fn layer(&self, layer: usize) -> String {
        format!("{}layers.{layer}.", self.decoder)
    }

    /// Where the checkpoint keeps a weight: sources whose rows follow each other from 0. Of a weight of all experts of a layer, the
    /// matrix of `expert` (which other roles ignore).
    pub fn sources(&self, weight: WeightRef, expert: u32) -> Result<Vec<Source>, NoNaming> {
        let mut sources = self.sources_or_none(weight, expert).ok_or_else(|| NoNaming {
            role: weight.role,
            layer: weight.layer,
            model_type: self.spec.model_type.clone(),
        })?;
        for source in sources.iter_mut().filter(|_| self.compressed_fp8) {
            if let Encoding::Fp8Block { scales, .. } = &mut source.encoding {
                *scales = FP8_SCALE_NAME_COMPRESSED;
            }
        }
        Ok(sources)
    }
    fn sources_or_none(&self, weight: WeightRef, expert: u32) -> Option<Vec<Source>> {
        let (hidden, vocab) = (self.spec.hidden, self.spec.vocab);
        let format = weight.format;
        let embedding = format!("{}embed_tokens", self.decoder);
        match weight.role {
            WeightRole::Embedding => return stack(format, vec![(embedding, vocab, hidden)]),
            WeightRole::LmHead if self.spec.tied_embeddings => return stack(format, vec![(embedding, vocab, hidden)]),
            WeightRole::LmHead => return stack(format, vec![(self.head.clone(), vocab, hidden)]),
            WeightRole::FinalNorm => return Some(vec![vector(format!("{}norm.weight", self.decoder), hidden)]),
            _ => {}
        }
        let index = usize::from(weight.layer?);
        let layer = self.spec.layers.get(index)?;
        let start = self.layer(index);
        match weight.role {
            WeightRole::InputNorm => return Some(vec![vector(format!("{start}input_layernorm.weight"), hidden)]),
            WeightRole::PostAttentionNorm => return Some(vec![vector(format!("{start}post_attention_layernorm.weight"), hidden)]),
            _ => {}
        }
        let of_attention = match &layer.attention {
            Attention::Mla(mla) => mla_sources(mla, weight, hidden, &format!("{start}self_attn.")),
            Attention::Gqa(gqa) => gqa_sources(gqa, weight, hidden, &format!("{start}self_attn.")),
            Attention::Linear(_) => None,
        };
        of_attention.or_else(|| match &layer.ffn {
            Ffn::Dense(dense) => dense_sources(dense, weight, hidden, &format!("{start}mlp.")),
            Ffn::Moe(moe) => self.moe_sources(moe, weight, expert, &format!("{start}{}.", self.moe)),
        })
    }

    fn moe_sources(&self, moe: &MoeSpec, weight: WeightRef, expert: u32, block: &str) -> Option<Vec<Source>> {
        let (hidden, experts) = (self.spec.hidden, u64::from(moe.experts));
        let router = format!("{block}{}", self.router);
        match weight.role {
            WeightRole::Router => stack(weight.format, vec![(router, experts, hidden)]),
            WeightRole::RouterBias => Some(vec![vector(format!("{router}.bias"), experts)]),
            WeightRole::CorrectionBias => Some(vec![vector(format!("{router}.e_score_correction_bias"), experts)]),
            WeightRole::SharedGate => stack(weight.format, vec![(format!("{block}shared_expert_gate"), 1, hidden)]),
            WeightRole::SharedGateUp | WeightRole::SharedDown => {
                let SharedExpertSpec { intermediate, .. } = moe.shared.as_ref()?;
                gated_mlp(weight, &format!("{block}{}.", self.shared), hidden, *intermediate)
            }
            WeightRole::SharedGateUpBias | WeightRole::SharedDownBias => {
                let SharedExpertSpec { intermediate, .. } = moe.shared.as_ref()?;
                gated_mlp_bias(weight, &format!("{block}{}.", self.shared), hidden, *intermediate)
            }
            WeightRole::ExpertsGateUp | WeightRole::ExpertsDown | WeightRole::ExpertsGateUpBias | WeightRole::ExpertsDownBias => {
                let of = ExpertMatrix { expert: u64::from(expert), experts, hidden, intermediate: moe.intermediate };
                of.sources(self.experts, weight, &format!("{block}experts."))
            }
            _ => None,
        }
    }
}

/// The first candidate that `found` accepts, else the first one.
fn pick<T>(candidates: &[T], found: impl Fn(&T) -> bool) -> &T {
    candidates.iter().find(|c| found(c)).unwrap_or(&candidates[0])
}

/// Modules whose matrices `(name, rows, columns)` lie one below the other.
fn stack(format: WeightFormat, modules: Vec<(String, u64, u64)>) -> Option<Vec<Source>> {
    modules.into_iter().map(|(module, rows, cols)| Source::module(&module, Matrix { rows, cols }, format)).collect()
}

fn vector(tensor: String, rows: u64) -> Source {
    Source { matrix: Matrix { rows, cols: 1 }, encoding: Encoding::Plain { tensor, view: View::vector(rows) } }
}

fn vectors(start: &str, parts: &[(&str, u64)]) -> Option<Vec<Source>> {
    Some(parts.iter().map(|(name, rows)| vector(format!("{start}{name}"), *rows)).collect())
}

fn mla_sources(mla: &MlaSpec, weight: WeightRef, hidden: u64, start: &str) -> Option<Vec<Source>> {
    let [heads, kv_lora, nope, rope, v] = [mla.heads, mla.kv_lora, mla.nope, mla.rope_dim, mla.v_dim].map(u64::from);
    let q_lora = mla.q_lora.map(u64::from);
    let q = |rows, cols, name: &str| (format!("{start}{name}"), rows, cols);
    let kva = q(kv_lora + rope, hidden, "kv_a_proj_with_mqa");
    let f = weight.format;
    match weight.role {
        WeightRole::QaKva => stack(f, vec![q(q_lora?, hidden, "q_a_proj"), kva]),
        WeightRole::QDirect => stack(f, vec![q(heads * (nope + rope), hidden, "q_proj")]),
        WeightRole::Kva => stack(f, vec![kva]),
        WeightRole::QaKvaBias => match q_lora {
            Some(q_lora) => vectors(start, &[("q_a_proj.bias", q_lora), ("kv_a_proj_with_mqa.bias", kv_lora + rope)]),
            None => vectors(start, &[("kv_a_proj_with_mqa.bias", kv_lora + rope)]),
        },
        WeightRole::QaNorm => vectors(start, &[("q_a_layernorm.weight", q_lora?)]),
        WeightRole::KvaNorm => vectors(start, &[("kv_a_layernorm.weight", kv_lora)]),
        WeightRole::Qb => stack(f, vec![q(heads * (nope + rope), q_lora?, "q_b_proj")]),
        WeightRole::KvB => stack(f, vec![q(heads * (nope + v), kv_lora, "kv_b_proj")]),
        WeightRole::O => stack(f, vec![q(hidden, heads * v, "o_proj")]),
        WeightRole::OBias => vectors(start, &[("o_proj.bias", hidden)]),
        _ => None,
    }
}

fn gqa_sources(gqa: &GqaSpec, weight: WeightRef, hidden: u64, start: &str) -> Option<Vec<Source>> {
    if gqa.output_gate {
        return None;
    }
    let [heads, kv_heads, head_dim] = [gqa.heads, gqa.kv_heads, gqa.head_dim].map(u64::from);
    let (q, kv) = (heads * head_dim, kv_heads * head_dim);
    let (q_norm, k_norm) = match gqa.qk_norm {
        QkNorm::Full => (q, kv),
        QkNorm::PerHead | QkNorm::None => (head_dim, head_dim),
    };
    let module = |name: &str, rows, cols| (format!("{start}{name}"), rows, cols);
    match weight.role {
        WeightRole::Qkv => {
            stack(weight.format, vec![module("q_proj", q, hidden), module("k_proj", kv, hidden), module("v_proj", kv, hidden)])
        }
        WeightRole::QkvBias => vectors(start, &[("q_proj.bias", q), ("k_proj.bias", kv), ("v_proj.bias", kv)]),
        WeightRole::QNorm => vectors(start, &[("q_norm.weight", q_norm)]),
        WeightRole::KNorm => vectors(start, &[("k_norm.weight", k_norm)]),
        WeightRole::Sinks => vectors(start, &[("sinks", heads)]),
        WeightRole::O => stack(weight.format, vec![module("o_proj", hidden, q)]),
        WeightRole::OBias => vectors(start, &[("o_proj.bias", hidden)]),
        _ => None,
    }
}

fn dense_sources(dense: &DenseSpec, weight: WeightRef, hidden: u64, start: &str) -> Option<Vec<Source>> {
    match weight.role {
        WeightRole::DenseGateUp | WeightRole::DenseDown => gated_mlp(weight, start, hidden, dense.intermediate),
        WeightRole::DenseGateUpBias | WeightRole::DenseDownBias => gated_mlp_bias(weight, start, hidden, dense.intermediate),
        _ => None,
    }
}

fn gated_mlp(weight: WeightRef, start: &str, hidden: u64, intermediate: u64) -> Option<Vec<Source>> {
    let module = |name: &str, rows, cols| (format!("{start}{name}"), rows, cols);
    match weight.role {
        WeightRole::DenseGateUp | WeightRole::SharedGateUp => {
            stack(weight.format, vec![module("gate_proj", intermediate, hidden), module("up_proj", intermediate, hidden)])
        }
        _ => stack(weight.format, vec![module("down_proj", hidden, intermediate)]),
    }
}

fn gated_mlp_bias(weight: WeightRef, start: &str, hidden: u64, intermediate: u64) -> Option<Vec<Source>> {
    match weight.role {
        WeightRole::DenseGateUpBias | WeightRole::SharedGateUpBias => {
            vectors(start, &[("gate_proj.bias", intermediate), ("up_proj.bias", intermediate)])
        }
        _ => vectors(start, &[("down_proj.bias", hidden)]),
    }
}

/// One expert's matrices inside a layer.
struct ExpertMatrix {
    expert: u64,
    experts: u64,
    hidden: u64,
    intermediate: u64,
}

impl ExpertMatrix {
    fn sources(&self, names: ExpertNames, weight: WeightRef, start: &str) -> Option<Vec<Source>> {
        match names {
            ExpertNames::Each { gate, up, down } => self.each(weight, start, [gate, up, down]),
            ExpertNames::Stacked => self.stacked(weight, start),
            ExpertNames::Interleaved => self.interleaved(weight, start),
        }
    }
    fn each(&self, weight: WeightRef, start: &str, [gate, up, down]: [&str; 3]) -> Option<Vec<Source>> {
        let &Self { expert, hidden, intermediate, .. } = self;
        let module = |name: &str, rows, cols| (format!("{start}{expert}.{name}"), rows, cols);
        let bias = |name: &str, rows| vector(format!("{start}{expert}.{name}.bias"), rows);
        match weight.role {
            WeightRole::ExpertsGateUp => stack(weight.format, vec![module(gate, intermediate, hidden), module(up, intermediate, hidden)]),
            WeightRole::ExpertsDown => stack(weight.format, vec![module(down, hidden, intermediate)]),
            WeightRole::ExpertsGateUpBias => Some(vec![bias(gate, intermediate), bias(up, intermediate)]),
            WeightRole::ExpertsDownBias => Some(vec![bias(down, hidden)]),
            _ => None,
        }
    }
    fn stacked(&self, weight: WeightRef, start: &str) -> Option<Vec<Source>> {
        let &Self { expert, experts, hidden, intermediate } = self;
        let (name, rows, cols) = match weight.role {
            WeightRole::ExpertsGateUp => ("gate_up_proj", 2 * intermediate, hidden),
            WeightRole::ExpertsDown => ("down_proj", hidden, intermediate),
            _ => return None,
        };
        // Quantized checkpoints keep a module an expert.
        if !is_plain(weight.format) {
            return None;
        }
        let view = View { shape: vec![experts, rows, cols], offset: expert * rows * cols, row_stride: cols, col_stride: 1 };
        Some(vec![Source { matrix: Matrix { rows, cols }, encoding: Encoding::Plain { tensor: format!("{start}{name}"), view } }])
    }
    fn interleaved(&self, weight: WeightRef, start: &str) -> Option<Vec<Source>> {
        let &Self { expert, experts, hidden, intermediate } = self;
        let both = 2 * intermediate;
        let plain = |matrix, name: &str, view| Source { matrix, encoding: Encoding::Plain { tensor: format!("{start}{name}"), view } };
        let mxfp4 = |matrix: Matrix, name: &str, stored_rows, first_row, row_step| Source {
            matrix,
            encoding: Encoding::Mxfp4 {
                blocks: format!("{start}{name}_blocks"),
                scales: format!("{start}{name}_scales"),
                experts,
                rows: stored_rows,
                first_row: expert * stored_rows + first_row,
                row_step,
            },
        };
        let half = |part: u64, format| {
            let matrix = Matrix { rows: intermediate, cols: hidden };
            let view = View { shape: vec![experts, hidden, both], offset: expert * hidden * both + part, row_stride: 2, col_stride: both };
            match format {
                WeightFormat::Mxfp4 => Some(mxfp4(matrix, "gate_up_proj", both, part, 2)),
                f if is_plain(f) => Some(plain(matrix, "gate_up_proj", view)),
                _ => None,
            }
        };
        match weight.role {
            WeightRole::ExpertsGateUp => Some(vec![half(0, weight.format)?, half(1, weight.format)?]),
            WeightRole::ExpertsDown if weight.format == WeightFormat::Mxfp4 => {
                Some(vec![mxfp4(Matrix { rows: hidden, cols: intermediate }, "down_proj", hidden, 0, 1)])
            }
            WeightRole::ExpertsDown if is_plain(weight.format) => {
                let view = View {
                    shape: vec![experts, intermediate, hidden],
                    offset: expert * intermediate * hidden,
                    row_stride: 1,
                    col_stride: hidden,
                };
                Some(vec![plain(Matrix { rows: hidden, cols: intermediate }, "down_proj", view)])
            }
            WeightRole::ExpertsGateUpBias => {
                let part = |p| View { shape: vec![experts, both], offset: expert * both + p, row_stride: 2, col_stride: 0 };
                let matrix = Matrix { rows: intermediate, cols: 1 };
                Some(vec![plain(matrix, "gate_up_proj_bias", part(0)), plain(matrix, "gate_up_proj_bias", part(1))])
            }
            WeightRole::ExpertsDownBias => {
                let view = View { shape: vec![experts, hidden], offset: expert * hidden, row_stride: 1, col_stride: 0 };
                Some(vec![plain(Matrix { rows: hidden, cols: 1 }, "down_proj_bias", view)])
            }
            _ => None,
        }
    }
}

fn is_plain(format: WeightFormat) -> bool {
    matches!(format, WeightFormat::Bf16 | WeightFormat::F16 | WeightFormat::F32)
}
