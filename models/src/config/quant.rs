//! Which storage format each module's weights have, from `quantization_config` or `hf_quant_config.json`.
//!
//! | method | what is read | how entries of the exception list match |
//! | --- | --- | --- |
//! | `compressed-tensors` | `pack-quantized` int4, `float-quantized` fp8 blocks, `nvfp4-pack-quantized`, `mxfp4-pack-quantized` | whole names, or `re:` expressions |
//! | `fp8` | `weight_block_size` with e4m3 | names, containers, last parts, globs |
//! | `modelopt` | `NVFP4` | names, containers, globs |
//! | `mxfp4` | routed experts only (gpt-oss) | names, containers, last parts, globs |
//!
//! Embeddings, norms, routers and biases are never quantized; the head only where a scheme covers it and does not except it.

use super::fields::{Fields, MAX_WIDTH};
use super::pattern::{Patterns, Plain};
use crate::dtype::WeightFormat;

/// Formats that can be read, for error messages.
const SUPPORTED: &str = "compressed-tensors (pack-quantized int4, float-quantized fp8 blocks, nvfp4-pack-quantized, mxfp4-pack-quantized), \
                         fp8 with weight_block_size, modelopt NVFP4, mxfp4";
/// Layers times entries that need a scan; real checkpoints stay below 10,000.
const MAX_WORK: usize = 2_000_000;

/// What a module is, as far as schemes tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Module {
    /// A projection outside the routed experts.
    Linear,
    /// A projection of a routed expert.
    Expert,
    /// The head.
    Head,
}

/// One rule: the modules it covers and their format.
struct Group {
    /// Covered names; `None` is every linear module.
    targets: Option<Patterns>,
    format: WeightFormat,
}

/// The quantization of a checkpoint.
pub(super) struct Scheme {
    groups: Vec<Group>,
    except: Patterns,
    /// Only routed experts are quantized.
    experts_only: bool,
    /// The head may be quantized.
    head: bool,
    /// What precedes `model.` in names; entries may be written with or without it.
    prefix: String,
}

impl Scheme {
    /// Nothing is quantized.
    pub(super) fn none() -> Self {
        Self { groups: Vec::new(), except: Patterns::new(Plain::Whole), experts_only: false, head: false, prefix: String::new() }
    }

    /// Format of a module that is stored in `plain` where it is not quantized. The name is without the checkpoint's prefix.
    pub(super) fn format(&self, module: Module, name: &str, plain: WeightFormat) -> WeightFormat {
        let covered = match module {
            Module::Linear => !self.experts_only,
            Module::Expert => true,
            Module::Head => self.head,
        };
        if !covered || self.groups.is_empty() {
            return plain;
        }
        let full = format!("{}{name}", self.prefix);
        let in_list = |p: &Patterns| p.matches(name) || (!self.prefix.is_empty() && p.matches(&full));
        if in_list(&self.except) {
            return plain;
        }
        let group = self.groups.iter().find(|g| g.targets.as_ref().is_none_or(in_list));
        group.map_or(plain, |g| g.format)
    }
}

/// Reads the scheme of a model with `layers` layers. `separate` is `hf_quant_config.json`, used where `config.json` says nothing.
pub(super) fn read(root: &Fields<'_>, text: &Fields<'_>, separate: Option<&Fields<'_>>, prefix: &str, layers: usize) -> Option<Scheme> {
    const KEY: &str = "quantization_config";
    if root.path(KEY) != text.path(KEY)
        && let (Some(outer), Some(inner)) = (root.raw(KEY), text.raw(KEY))
        && outer != inner
    {
        text.fault(KEY, "differs from the quantization_config of the whole model", "one of the two");
        return None;
    }
    let place = if text.has(KEY) { text } else { root };
    let mut scheme = match place.maybe_object(KEY)? {
        Some(fields) => read_config(&fields)?,
        None => match separate {
            Some(fields) => modelopt_file(fields)?,
            None => Scheme::none(),
        },
    };
    scheme.prefix = prefix.into();
    let entries =
        scheme.except.slow_entries() + scheme.groups.iter().filter_map(|g| g.targets.as_ref()).map(Patterns::slow_entries).sum::<usize>();
    if entries.saturating_mul(layers) > MAX_WORK {
        let problem = format!("has {entries} patterns for {layers} layers");
        place.fault(KEY, problem, format!("at most {} patterns", MAX_WORK / layers.max(1)));
        return None;
    }
    Some(scheme)
}

fn read_config(fields: &Fields<'_>) -> Option<Scheme> {
    let method = fields.maybe_str(&["quant_method"])?;
    // modelopt writes its algorithm beside the method, older versions only the algorithm.
    match method {
        Some("compressed-tensors") => compressed_tensors(fields),
        Some("fp8") => fp8(fields),
        Some("mxfp4") => mxfp4(fields),
        Some(m) if m.starts_with("modelopt") => modelopt(fields, fields, "ignore"),
        None if fields.has("quant_algo") => modelopt(fields, fields, "ignore"),
        None => {
            fields.fault("quant_method", "is missing", SUPPORTED);
            None
        }
        Some(other) => {
            fields.fault("quant_method", format!("is {other:?}, which cannot be read"), SUPPORTED);
            None
        }
    }
}

/// The exception list of a scheme.
fn exceptions(fields: &Fields<'_>, key: &str, rule: Plain) -> Option<Patterns> {
    let mut patterns = Patterns::new(rule);
    add_all(&mut patterns, fields, key, &fields.maybe_strings(key)?.unwrap_or_default())?;
    Some(patterns)
}

fn add_all(patterns: &mut Patterns, fields: &Fields<'_>, key: &str, entries: &[&str]) -> Option<()> {
    for (i, entry) in entries.iter().enumerate() {
        if let Err(reason) = patterns.add(entry) {
            fields.element_fault(
                key,
                i,
                format!("is not an expression that can be read: {reason}"),
                "a regular expression without look-around",
            );
            return None;
        }
    }
    Some(())
}

fn fp8(fields: &Fields<'_>) -> Option<Scheme> {
    let fmt = fields.maybe_choice(&["fmt"], &["e4m3", "float8_e4m3fn"]);
    let block = block(fields, "weight_block_size");
    let mut except = exceptions(fields, "modules_to_not_convert", Plain::ContainerOrTail)?;
    // The name that vLLM's own quantizers give the list.
    add_all(&mut except, fields, "ignored_layers", &fields.maybe_strings("ignored_layers")?.unwrap_or_default())?;
    fmt?;
    let (rows, cols) = block?;
    let groups = vec![Group { targets: None, format: WeightFormat::Fp8Block { rows, cols } }];
    // Checkpoints of this kind keep the head, and transformers excepts it by default.
    Some(Scheme { groups, except, head: false, ..Scheme::none() })
}

/// A `[rows, cols]` block that must be there.
fn block(fields: &Fields<'_>, key: &str) -> Option<(u32, u32)> {
    let accepted = "two sizes, for example [128, 128]; one scale a tensor or a channel cannot be read";
    match fields.maybe_numbers(key, 1..=MAX_WIDTH)? {
        Some(sizes) if sizes.len() == 2 => Some((sizes[0] as u32, sizes[1] as u32)),
        Some(sizes) => {
            fields.fault(key, format!("has {} sizes", sizes.len()), accepted);
            None
        }
        None => {
            fields.fault(key, "is missing", accepted);
            None
        }
    }
}

fn mxfp4(fields: &Fields<'_>) -> Option<Scheme> {
    let except = exceptions(fields, "modules_to_not_convert", Plain::ContainerOrTail)?;
    let groups = vec![Group { targets: None, format: WeightFormat::Mxfp4 }];
    Some(Scheme { groups, except, experts_only: true, ..Scheme::none() })
}

/// modelopt's entries of a `quantization_config`, or of the `quantization` object of `hf_quant_config.json`.
fn modelopt(fields: &Fields<'_>, lists: &Fields<'_>, key: &str) -> Option<Scheme> {
    let algorithm = fields.maybe_str(&["quant_algo"])?;
    let group = fields.maybe_u64(&["group_size"], 16..=16);
    let except = exceptions(lists, key, Plain::Container);
    if algorithm != Some("NVFP4") {
        let problem = algorithm.map_or("is missing".into(), |a| format!("is {a:?}, which cannot be read"));
        fields.fault("quant_algo", problem, SUPPORTED);
        return None;
    }
    group?;
    if fields.has("kv_cache_scheme") || fields.has("kv_cache_quant_algo") {
        fields.sink.warn("the checkpoint brings scales for an 8-bit KV cache; the deployment's KV type decides what is modelled");
    }
    let groups = vec![Group { targets: None, format: WeightFormat::Nvfp4 }];
    Some(Scheme { groups, except: except?, head: true, ..Scheme::none() })
}

fn modelopt_file(fields: &Fields<'_>) -> Option<Scheme> {
    let Some(inner) = fields.maybe_object("quantization")? else {
        fields.fault("quantization", "is missing", "an object with quant_algo and exclude_modules");
        return None;
    };
    modelopt(&inner, &inner, "exclude_modules")
}

fn compressed_tensors(fields: &Fields<'_>) -> Option<Scheme> {
    let except = exceptions(fields, "ignore", Plain::Whole);
    let format = fields.maybe_str(&["format"])?;
    let Some(config_groups) = fields.maybe_object("config_groups")?.filter(|g| g.keys().next().is_some()) else {
        fields.fault("config_groups", "is missing or empty", "an object with one group of weights and targets");
        return None;
    };
    let mut groups = Vec::new();
    for name in config_groups.keys() {
        let Some(group) = config_groups.maybe_object(name)? else { continue };
        let format = group.maybe_str(&["format"])?.or(format);
        let Some(weights) = group.maybe_object("weights")? else {
            group.fault("weights", "is missing", "an object with num_bits, type and strategy");
            return None;
        };
        groups.push(Group { targets: targets(&group)?, format: weight_format(fields, &weights, format)? });
    }
    Some(Scheme { groups, except: except?, head: true, ..Scheme::none() })
}

/// The modules of a group, `None` inside for all linear ones.
fn targets(group: &Fields<'_>) -> Option<Option<Patterns>> {
    let Some(entries) = group.maybe_strings("targets")? else { return Some(None) };
    if entries.contains(&"Linear") {
        return Some(None);
    }
    let mut patterns = Patterns::new(Plain::Whole);
    add_all(&mut patterns, group, "targets", &entries)?;
    Some(Some(patterns))
}

fn weight_format(fields: &Fields<'_>, weights: &Fields<'_>, format: Option<&str>) -> Option<WeightFormat> {
    let bits = weights.u64(&["num_bits"], 1..=16);
    let kind = weights.maybe_choice(&["type"], &["int", "float"]);
    let strategy = weights.maybe_str(&["strategy"]);
    let symmetric = weights.bool_or(&["symmetric"], true);
    let (bits, kind, strategy, symmetric) = (bits?, kind?.unwrap_or("int"), strategy?, symmetric?);
    match (format, kind, bits) {
        (Some("nvfp4-pack-quantized"), "float", 4) => Some(WeightFormat::Nvfp4),
        (Some("mxfp4-pack-quantized"), "float", 4) => Some(WeightFormat::Mxfp4),
        (Some("float-quantized"), "float", 8) if strategy == Some("block") => {
            block(weights, "block_structure").map(|(rows, cols)| WeightFormat::Fp8Block { rows, cols })
        }
        (Some("pack-quantized"), "int", 4) => int4(weights, strategy, symmetric),
        _ => {
            let place = format.map_or_else(|| "no format".into(), |f| format!("format {f:?}"));
            let strategy = strategy.map_or_else(|| "no strategy".into(), |s| format!("strategy {s:?}"));
            fields.fault("format", format!("{place} with {bits}-bit {kind} weights and {strategy} cannot be read"), SUPPORTED);
            None
        }
    }
}

fn int4(weights: &Fields<'_>, strategy: Option<&str>, symmetric: bool) -> Option<WeightFormat> {
    if strategy != Some("group") {
        let found = strategy.map_or_else(|| "missing".into(), |s| format!("{s:?}"));
        weights.fault("strategy", format!("is {found}"), "group");
        return None;
    }
    if !symmetric {
        weights.fault("symmetric", "is false; zero points cannot be read", "true");
        return None;
    }
    // Static reordering of columns (actorder "weight") leaves the stored layout alone, "group" adds an index per column.
    if weights.maybe_str(&["actorder"])? == Some("group") {
        weights.fault("actorder", "is \"group\"; reordered columns cannot be read", "null, \"weight\", \"static\"");
        return None;
    }
    let group = weights.u64(&["group_size"], 8..=MAX_WIDTH)?;
    if !group.is_multiple_of(8) {
        weights.fault("group_size", format!("is {group}; eight 4-bit values share a word"), "a multiple of 8");
        return None;
    }
    Some(WeightFormat::Int4Group { group: group as u32 })
}
