//! What all families share: sizes of the whole decoder, heads, routed experts, and the formats of a layer's blocks.

use super::fields::{Fields, MAX_EXPERTS, MAX_HEADS, MAX_INTERMEDIATE, MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, MAX_WIDTH, Sink};
use super::quant::{Module, Scheme};
use super::rope::{self, Rope, RopeDefaults};
use crate::dtype::{DType, WeightFormat};
use crate::spec::{Activation, DenseSpec, Ffn, LayerSpec, MoeSpec, OutsideModule, RopeScaling, RouterSpec, SharedExpertSpec};

/// Names of `hidden_act` for `silu(x) = x * sigmoid(x)`.
const SILU: &[&str] = &["silu", "swish"];

/// What a family's configuration class in transformers 5.17 assumes where the file is silent.
pub(super) struct Defaults {
    pub(super) norm_eps: f64,
    pub(super) max_positions: u64,
    pub(super) theta: f64,
}

/// Sizes of the whole decoder.
pub(super) struct Base {
    pub(super) hidden: u64,
    pub(super) vocab: u64,
    pub(super) layers: usize,
    pub(super) norm_eps: f64,
    pub(super) max_positions: u64,
    pub(super) tied: bool,
    pub(super) dtype: DType,
}

impl Base {
    /// Reads the sizes; `root` is the outer object of a wrapper and the same as `text` otherwise.
    pub(super) fn read(root: &Fields<'_>, text: &Fields<'_>, defaults: &Defaults) -> Option<Self> {
        let hidden = text.u64(&["hidden_size"], 1..=MAX_WIDTH);
        let vocab = text.u64(&["vocab_size"], 1..=MAX_VOCAB);
        let layers = text.u64(&["num_hidden_layers"], 1..=MAX_LAYERS);
        let norm_eps = text.f64_assumed(&["rms_norm_eps"], 0.0..=1.0, defaults.norm_eps);
        let max_positions = text.u64_assumed(&["max_position_embeddings"], 1..=MAX_POSITIONS, defaults.max_positions);
        // Of a wrapper the outer flag counts, as in transformers.
        let tied = match root.maybe_bool(&["tie_word_embeddings"]) {
            Some(None) => text.bool_or(&["tie_word_embeddings"], false),
            given => given.flatten(),
        };
        let activation = text.maybe_choice(&["hidden_act"], SILU);
        let dtype = dtype(text).and_then(|d| d.map_or_else(|| dtype_of(root), Some));
        activation?;
        let layers = layers? as usize;
        Some(Self {
            hidden: hidden?,
            vocab: vocab?,
            layers,
            norm_eps: norm_eps?,
            max_positions: max_positions?,
            tied: tied?,
            dtype: dtype?,
        })
    }
}

fn dtype(fields: &Fields<'_>) -> Option<Option<DType>> {
    let names = fields.maybe_choice(&["dtype", "torch_dtype"], &["bfloat16", "float16", "float32"])?;
    Some(names.map(|name| match name {
        "float16" => DType::F16,
        "float32" => DType::F32,
        _ => DType::Bf16,
    }))
}

/// The type in the outer object; checkpoints that name none are stored in bfloat16.
fn dtype_of(root: &Fields<'_>) -> Option<DType> {
    Some(dtype(root)?.unwrap_or(DType::Bf16))
}

/// Everything a family's reader looks at.
pub(super) struct Context<'a> {
    /// The outer object.
    pub(super) root: &'a Fields<'a>,
    /// The object of the text decoder.
    pub(super) text: &'a Fields<'a>,
    pub(super) sink: &'a Sink,
    pub(super) base: Option<Base>,
    pub(super) scheme: Scheme,
    pub(super) defaults: &'a Defaults,
    /// The family is modelled for cost, not for values.
    pub(super) cost_only: bool,
}

/// What a family's reader gives.
pub(super) struct Body {
    pub(super) layers: Vec<LayerSpec>,
    pub(super) outside: Vec<OutsideModule>,
}

impl From<Vec<LayerSpec>> for Body {
    fn from(layers: Vec<LayerSpec>) -> Self {
        Self { layers, outside: Vec::new() }
    }
}

/// Query and key-value heads of grouped-query attention.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
}

/// Names of the modules of a feed-forward block, below `model.layers.N.`.
pub(super) struct FfnNames {
    pub(super) block: &'static str,
    /// Projections of a dense MLP and of the shared expert.
    pub(super) dense: &'static [&'static str],
    /// Projections of an expert.
    pub(super) expert: &'static [&'static str],
    pub(super) shared: &'static str,
    /// Whether the dense projections, those of the shared expert among them, carry biases.
    pub(super) bias: bool,
}

/// `mlp.{gate,up,down}_proj`, the most common names.
pub(super) const MLP_NAMES: FfnNames = FfnNames {
    block: "mlp",
    dense: &["gate_proj", "up_proj", "down_proj"],
    expert: &["gate_proj", "up_proj", "down_proj"],
    shared: "shared_experts",
    bias: false,
};

/// Names of Mixtral and its relatives.
pub(super) const SPARSE_NAMES: FfnNames =
    FfnNames { block: "block_sparse_moe", dense: &["w1", "w2", "w3"], expert: &["w1", "w2", "w3"], ..MLP_NAMES };

/// Routed experts of a family, the same in all its sparse layers.
pub(super) struct MoeShape {
    pub(super) experts: u32,
    pub(super) topk: u32,
    pub(super) intermediate: u64,
    pub(super) router: RouterSpec,
    pub(super) activation: Activation,
    pub(super) expert_bias: bool,
    /// Intermediate size and gating of the shared expert.
    pub(super) shared: Option<(u64, bool)>,
}

impl Context<'_> {
    /// Element format where nothing is quantized.
    pub(super) fn plain(&self) -> WeightFormat {
        WeightFormat::plain(self.base.as_ref().map_or(DType::Bf16, |b| b.dtype))
    }

    pub(super) fn rope_defaults(&self) -> RopeDefaults {
        RopeDefaults {
            theta: self.defaults.theta,
            partial: 1.0,
            partial_allowed: false,
            interleaved: false,
            absent: RopeScaling::None,
            cost_only: self.cost_only,
        }
    }
    pub(super) fn rope(&self, head_dim: u32, layer_type: &str, defaults: &RopeDefaults) -> Option<Rope> {
        rope::read(self.text, head_dim, layer_type, defaults)
    }

    /// Heads of grouped-query attention. `head_dim` is the family's default where it has one other than `hidden / heads`;
    /// `kv_optional` families have as many key-value heads as heads unless the file says otherwise.
    pub(super) fn heads(&self, head_dim: Option<u32>, kv_optional: bool) -> Option<Heads> {
        let text = self.text;
        let heads = text.u32(&["num_attention_heads"], 1..=MAX_HEADS);
        let kv_key = &["num_key_value_heads"];
        // null is an old way to say "as many as heads".
        let kv_heads = if kv_optional || text.mentions(kv_key[0]) && !text.has(kv_key[0]) {
            text.maybe_u64(kv_key, 1..=MAX_HEADS).and_then(|v| v.map_or(heads, |v| Some(v as u32)))
        } else {
            text.u32(kv_key, 1..=MAX_HEADS)
        };
        if let (Some(heads), Some(kv)) = (heads, kv_heads)
            && !heads.is_multiple_of(kv)
        {
            text.fault(kv_key[0], format!("is {kv}, which does not divide the {heads} attention heads"), format!("a divisor of {heads}"));
        }
        let head_dim = match text.maybe_u64(&["head_dim"], 1..=MAX_HEADS)? {
            Some(d) => Some(d as u32),
            None if head_dim.is_some() => head_dim,
            None => self.divided_head_dim(heads),
        };
        Some(Heads { heads: heads?, kv_heads: kv_heads?, head_dim: head_dim? })
    }

    fn divided_head_dim(&self, heads: Option<u32>) -> Option<u32> {
        let (hidden, heads) = (self.base.as_ref()?.hidden, u64::from(heads?));
        if !hidden.is_multiple_of(heads) {
            let problem = format!("is missing, and hidden_size {hidden} is not a multiple of the {heads} attention heads");
            self.text.fault("head_dim", problem, "the size of a head");
            return None;
        }
        let dim = hidden / heads;
        if dim > MAX_HEADS {
            self.text.fault(
                "num_attention_heads",
                format!("is {heads}, which makes heads of {dim}"),
                format!("heads of at most {MAX_HEADS}"),
            );
            return None;
        }
        Some(dim as u32)
    }

    /// Number of routed experts and how many a token goes to.
    pub(super) fn experts(&self, count: &[&str], chosen: &[&str]) -> Option<(u32, u32)> {
        let experts = self.text.u32(count, 1..=MAX_EXPERTS);
        let topk = self.text.u32(chosen, 1..=MAX_EXPERTS);
        let (experts, topk) = (experts?, topk?);
        if topk > experts {
            let key = self.text.which(chosen);
            self.text.fault(key, format!("is {topk}, more than the {experts} experts"), format!("a whole number from 1 to {experts}"));
            return None;
        }
        Some((experts, topk))
    }

    /// An intermediate size that must be there.
    pub(super) fn intermediate(&self, key: &str) -> Option<u64> {
        self.text.u64(&[key], 1..=MAX_INTERMEDIATE)
    }

    /// `intermediate_size` of the dense layers, which only a model that has some must give.
    pub(super) fn dense_intermediate(&self, sparse: Option<&[bool]>) -> Option<u64> {
        match sparse {
            Some(layers) if !layers.contains(&false) => self.text.u64_or(&["intermediate_size"], 1..=MAX_INTERMEDIATE, 1),
            _ => self.intermediate("intermediate_size"),
        }
    }

    /// The feed-forward block of a layer: experts, or a dense MLP of the given size.
    pub(super) fn ffn(&self, layer: usize, names: &FfnNames, sparse: Option<&MoeShape>, dense: u64) -> Option<Ffn> {
        Some(match sparse {
            Some(shape) => Ffn::Moe(self.moe(layer, names, shape)?),
            None => Ffn::Dense(self.dense(layer, names, dense, Activation::Silu)?),
        })
    }

    /// Which layers are sparse under `mlp_only_layers` and `decoder_sparse_step` (Qwen).
    pub(super) fn sparse_by_step(&self) -> Option<Vec<bool>> {
        let layers = self.base.as_ref().map(|b| b.layers);
        let step = self.text.u64_or(&["decoder_sparse_step"], 1..=MAX_LAYERS, 1);
        let dense = self.text.maybe_numbers("mlp_only_layers", 0..=MAX_LAYERS);
        let (layers, step, dense) = (layers?, step?, dense?.unwrap_or_default());
        for (i, &layer) in dense.iter().enumerate() {
            if layer >= layers as u64 {
                self.text.element_fault(
                    "mlp_only_layers",
                    i,
                    format!("is {layer}, but there are {layers} layers"),
                    format!("0 to {}", layers - 1),
                );
                return None;
            }
        }
        let mut sparse: Vec<bool> = (0..layers as u64).map(|i| (i + 1).is_multiple_of(step)).collect();
        dense.iter().for_each(|&layer| sparse[layer as usize] = false);
        Some(sparse)
    }

    /// Which layers are sparse under `first_k_dense_replace` and `moe_layer_freq` (DeepSeek, GLM).
    pub(super) fn sparse_after(&self, default_first: u64) -> Option<Vec<bool>> {
        let layers = self.base.as_ref().map(|b| b.layers as u64);
        let first = self.text.u64_assumed(&["first_k_dense_replace"], 0..=MAX_LAYERS, default_first);
        let step = self.text.u64_or(&["moe_layer_freq"], 1..=MAX_LAYERS, 1);
        let (layers, first, step) = (layers?, first?, step?);
        if step > 1 {
            let rule = "as in the published code of these models and in the engines; transformers 5.17 ignores it";
            self.sink.warn(format!("moe_layer_freq is {step}: only layers whose index is a multiple of it have experts, {rule}"));
        }
        if self.text.has("first_k_dense_replace") && first > layers {
            self.text.fault("first_k_dense_replace", format!("is {first}, but there are {layers} layers"), format!("0 to {layers}"));
            return None;
        }
        Some((0..layers).map(|i| i >= first && i.is_multiple_of(step)).collect())
    }

    /// `layer_types`, one word of `known` for each layer, or what `default` says of a layer's index.
    pub(super) fn layer_types(&self, known: &[&'static str], default: impl Fn(usize) -> &'static str) -> Option<Vec<&'static str>> {
        let layers = self.base.as_ref()?.layers;
        let Some(given) = self.text.maybe_strings("layer_types")? else { return Some((0..layers).map(default).collect()) };
        if given.len() != layers {
            let problem = format!("has {} entries for {layers} layers", given.len());
            self.text.fault("layer_types", problem, format!("a list of {layers}"));
            return None;
        }
        let mut types = Vec::with_capacity(layers);
        for (i, word) in given.iter().enumerate() {
            match known.iter().find(|k| *k == word) {
                Some(k) => types.push(*k),
                None => {
                    self.text.element_fault("layer_types", i, format!("is {word:?}"), known.join(", "));
                    return None;
                }
            }
        }
        Some(types)
    }

    /// The one format of a block's modules. A block whose modules differ, or whose rows a scale group would not divide, is a fault.
    /// `inputs` are the lengths of the rows of its matrices.
    pub(super) fn block_format(&self, module: Module, names: impl Iterator<Item = String>, inputs: &[u64]) -> Option<WeightFormat> {
        let mut found: Option<(String, WeightFormat)> = None;
        for name in names {
            let format = self.scheme.format(module, &name, self.plain());
            match &found {
                Some((first, other)) if *other != format => {
                    let problem = format!("gives {first} the format {} and {name} {}", other.name(), format.name());
                    self.quantization_fault(problem, "one format for all projections of a block");
                    return None;
                }
                Some(_) => {}
                None => found = Some((name, format)),
            }
        }
        let (name, format) = found?;
        let (_, group) = format.granularity();
        // Only 4-bit groups must divide a row; blocks of 8-bit scales may be cut at the edge.
        if matches!(format, WeightFormat::Int4Group { .. } | WeightFormat::Nvfp4 | WeightFormat::Mxfp4)
            && let Some(length) = inputs.iter().find(|n| !n.is_multiple_of(group))
        {
            let problem = format!("stores {name} in groups of {group}, which do not divide its rows of {length}");
            self.quantization_fault(problem, "a group that divides every row, or an exception for the module");
            return None;
        }
        Some(format)
    }

    fn quantization_fault(&self, problem: String, accepted: &str) {
        let place = if self.text.has("quantization_config") { self.text } else { self.root };
        place.fault("quantization_config", problem, accepted);
    }

    /// Format of the attention projections of a layer.
    pub(super) fn attention_format(&self, layer: usize, block: &str, names: &[&str], inputs: &[u64]) -> Option<WeightFormat> {
        self.block_format(Module::Linear, names.iter().map(|n| format!("model.layers.{layer}.{block}.{n}")), inputs)
    }

    /// A dense MLP of a layer.
    fn dense(&self, layer: usize, names: &FfnNames, intermediate: u64, activation: Activation) -> Option<DenseSpec> {
        let hidden = self.base.as_ref()?.hidden;
        let modules = names.dense.iter().map(|n| format!("model.layers.{layer}.{}.{n}", names.block));
        let format = self.block_format(Module::Linear, modules, &[hidden, intermediate])?;
        Some(DenseSpec { intermediate, activation, bias: names.bias, format })
    }

    /// The experts of a layer.
    pub(super) fn moe(&self, layer: usize, names: &FfnNames, shape: &MoeShape) -> Option<MoeSpec> {
        let hidden = self.base.as_ref()?.hidden;
        let block = format!("model.layers.{layer}.{}", names.block);
        // Exception lists name whole blocks; the first and the last expert stand for all.
        let ends = if shape.experts == 1 { vec![0] } else { vec![0, shape.experts - 1] };
        let modules = ends.iter().flat_map(|e| names.expert.iter().map(move |n| (e, n))).map(|(e, n)| format!("{block}.experts.{e}.{n}"));
        let format = self.block_format(Module::Expert, modules, &[hidden, shape.intermediate])?;
        let shared = match shape.shared {
            Some((intermediate, gated)) => {
                let modules = names.dense.iter().map(|n| format!("{block}.{}.{n}", names.shared));
                let format = self.block_format(Module::Linear, modules, &[hidden, intermediate])?;
                Some(SharedExpertSpec { intermediate, gated, bias: names.bias, format })
            }
            None => None,
        };
        Some(MoeSpec {
            experts: shape.experts,
            topk: shape.topk,
            intermediate: shape.intermediate,
            router: shape.router.clone(),
            activation: shape.activation,
            expert_bias: shape.expert_bias,
            format,
            shared,
        })
    }
}
