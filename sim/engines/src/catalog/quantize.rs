//! How weights are stored: by name, by configuration, by flag.

use crate::model::{Model, WeightScheme};
use moetwin_models::ModelSpec;
use moetwin_models::dtype::WeightFormat;
use moetwin_models::spec::{Attention, Ffn};

/// What a name says of the checkpoint's storage.
pub(super) struct Said {
    pub(super) scheme: Option<&'static str>,
}

/// Words of names and the storage they stand for; the first that occurs counts.
const WORDS: &[(&str, &str)] = &[
    ("nvfp4", "nvfp4"),
    ("fp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    ("mxfp8", "mxfp8"),
    ("w4afp8", "w4afp8"),
    ("w4a8", "w4afp8"),
    ("awq", "awq"),
    ("gptq", "gptq"),
    ("autoround", "gptq"),
    ("w8a8", "int8"),
    ("int8", "int8"),
    ("w4a16", "int4"),
    ("int4", "int4"),
    ("4bit", "int4"),
    ("q4", "int4"),
    ("q8", "int8"),
    ("fp8", "fp8"),
    ("bf16", "bf16"),
    ("bfloat16", "bf16"),
    ("fp16", "bf16"),
];

/// Reads the words of a normalized name.
pub(super) fn said(text: &str) -> Said {
    let words: Vec<&str> = text.split('-').collect();
    Said { scheme: WORDS.iter().find(|(word, _)| words.contains(word)).map(|(_, scheme)| *scheme) }
}

/// The scheme that a storage format belongs to.
fn method_of(format: WeightFormat) -> &'static str {
    match format {
        WeightFormat::Bf16 | WeightFormat::F16 | WeightFormat::F32 => "bf16",
        WeightFormat::Fp8Block { .. } => "fp8",
        WeightFormat::Int4Group { .. } => "int4",
        WeightFormat::Nvfp4 => "nvfp4",
        WeightFormat::Mxfp4 => "mxfp4",
    }
}

/// The scheme by name: method as engines call it, blocks, groups.
pub(super) fn scheme(method: &str, experts_only: bool) -> WeightScheme {
    let checkpoint = match method {
        "bf16" => None,
        "nvfp4" => Some("modelopt_fp4"),
        "int4" | "int8" => Some("compressed-tensors"),
        other => Some(other),
    };
    WeightScheme {
        method: method.to_owned(),
        checkpoint_method: checkpoint.map(str::to_owned),
        block: (method == "fp8").then_some((128, 128)),
        group: match method {
            "awq" | "gptq" | "int4" | "w4afp8" => Some(128),
            "nvfp4" => Some(16),
            "mxfp4" => Some(32),
            _ => None,
        },
        experts_only,
        weight_only: false,
    }
}

/// Sets the checkpoint's storage: as the name says, else as the configuration does.
pub(super) fn checkpoint(model: &mut Model, said: Option<&'static str>) {
    let own = model.spec.as_ref().and_then(of_spec);
    let current = own.as_ref().map(|s| s.method.clone()).or_else(|| Some(model.weights.method.clone()).filter(|m| !m.is_empty()));
    let same = |said: &str| current.as_deref().is_some_and(|c| c == said || (c == "int4" && matches!(said, "w4a16")));
    match said {
        // `(FP8)` of a model whose experts are FP4 speaks of the checkpoint as a whole.
        Some(said) if !(same(said) || said == "fp8" && model.shape.experts_method.is_some()) => {
            model.weights = scheme(said, said == "mxfp4" || model.weights.experts_only && said == "int4");
            model.shape.experts_method = None;
            if let Some(spec) = &mut model.spec {
                requantize(spec, &model.weights);
            }
        }
        _ => {
            if let Some(own) = own {
                model.weights = own;
            }
        }
    }
    if model.weights.method.is_empty() {
        model.weights = scheme("bf16", false);
        model.assumptions.push("16-bit weights: neither name nor configuration says that they are quantized".to_owned());
    }
}

/// The scheme of a configuration: its most quantized part.
fn of_spec(spec: &ModelSpec) -> Option<WeightScheme> {
    let attention = spec.layers.first().map(|l| match &l.attention {
        Attention::Mla(a) => a.format,
        Attention::Gqa(a) => a.format,
        Attention::Linear(a) => a.format,
    })?;
    let experts = spec.layers.iter().find_map(|l| if let Ffn::Moe(m) = &l.ffn { Some(m.format) } else { None });
    let format = experts.unwrap_or(attention);
    let mut out = scheme(method_of(format), method_of(attention) == "bf16" && method_of(format) != "bf16");
    match format {
        WeightFormat::Fp8Block { rows, cols } => out.block = Some((u64::from(rows), u64::from(cols))),
        WeightFormat::Int4Group { group } => out.group = Some(u64::from(group)),
        _ => {}
    }
    Some(out)
}

/// The format of a scheme's quantized weights; formats without a name of their own are those of equal size.
pub(super) fn format_of(scheme: &WeightScheme) -> WeightFormat {
    let group = scheme.group.and_then(|g| u32::try_from(g).ok()).unwrap_or(128).max(8);
    match scheme.method.as_str() {
        "fp8" | "int8" => {
            let (rows, cols) = scheme.block.unwrap_or((128, 128));
            WeightFormat::Fp8Block { rows: rows.clamp(1, 1 << 20) as u32, cols: cols.clamp(1, 1 << 20) as u32 }
        }
        "int4" | "awq" | "gptq" | "w4afp8" => WeightFormat::Int4Group { group },
        "nvfp4" => WeightFormat::Nvfp4,
        "mxfp4" => WeightFormat::Mxfp4,
        // A byte an element and a byte for every 32 of a row.
        "mxfp8" => WeightFormat::Fp8Block { rows: 1, cols: 128 },
        _ => WeightFormat::Bf16,
    }
}

/// Whether a scheme covers the attention's projections in the checkpoints that people publish: NVFP4 ones leave them in 16 bits
/// (NVIDIA's and most of the community's exclude lists) unless they are weight-only, MXFP4 ones cover the experts alone.
pub(super) fn covers_attention(scheme: &WeightScheme) -> bool {
    scheme.weight_only || !scheme.experts_only && !matches!(scheme.method.as_str(), "nvfp4" | "mxfp4" | "w4afp8" | "bf16")
}

/// Stores a model's weights as a scheme would: embedding, head, norms and routers stay, attention where the scheme covers it.
pub fn requantize(spec: &mut ModelSpec, scheme: &WeightScheme) {
    let plain = spec.plain_format();
    let quantized = format_of(scheme);
    let attention = if covers_attention(scheme) { quantized } else { plain };
    let rest = if scheme.experts_only { plain } else { quantized };
    if spec.embedding_format != plain {
        spec.embedding_format = plain;
    }
    for layer in &mut spec.layers {
        match &mut layer.attention {
            Attention::Mla(a) => a.format = attention,
            Attention::Gqa(a) => a.format = attention,
            Attention::Linear(a) => a.format = attention,
        }
        match &mut layer.ffn {
            Ffn::Dense(d) => d.format = rest,
            Ffn::Moe(m) => {
                m.format = quantized;
                if let Some(shared) = &mut m.shared {
                    shared.format = rest;
                }
            }
        }
    }
}

/// `--quantization`: a method that the checkpoint does not have is applied while loading.
pub(super) fn flag(model: &mut Model, flag: Option<&str>) {
    let Some(flag) = flag else { return };
    let asked = match flag {
        "fp8" | "modelopt_fp8" => "fp8",
        "modelopt_fp4" | "modelopt" | "nvfp4" => "nvfp4",
        "awq" | "awq_marlin" => "awq",
        "gptq" | "gptq_marlin" | "auto_round" | "auto-round" => "gptq",
        "mxfp4" => "mxfp4",
        _ => return,
    };
    // A rule refuses this: there is nothing that the method could read.
    if model.unquantized && matches!(asked, "awq" | "gptq") {
        return;
    }
    if model.weights.method != asked && model.weights.method == "bf16" && asked != "fp8" {
        // A checkpoint method that the name does not show: the flag says how it is stored.
        model.weights = scheme(asked, false);
        if let Some(spec) = &mut model.spec {
            requantize(spec, &model.weights);
        }
    }
}
