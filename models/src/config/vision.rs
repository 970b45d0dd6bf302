//! Weight bytes of the parts of multimodal wrappers that the graph leaves out.
//!
//! A vision tower is a transformer with LayerNorms (weight and bias) and biased linear layers. With `d` its width, `i` its
//! intermediate size, `p` the values of a patch, `n` its learned positions and `m` the patches that are merged into one token of width `h`:
//!
//! ```text
//! parameters = p d + d + n d                                     patch embedding, positions
//!            + depth * (4 (d d + d) + 2 d i + i + d + 4 d)       attention, MLP, two norms
//!            + 2 d                                               final norm
//!            + 2 d + (m d)^2 + m d + m d h + h                   projector: norm and two linear layers
//! ```
//!
//! Kimi-K2.5 (27 layers of 1152, 4304; 14 x 14 x 3 values a patch; 64 x 64 positions; 2 x 2 patches a token of 7168): 470.6 M parameters,
//! 0.877 GiB in bfloat16. Towers are stored in the model's element type and replicated on every rank.

use super::common::Context;
use super::fields::{Fields, MAX_HEADS, MAX_INTERMEDIATE, MAX_LAYERS, MAX_WIDTH};
use crate::spec::OutsideModule;

/// Largest tower that is read.
const MAX_PARAMETERS: u64 = 1 << 50;

/// Where a wrapper's `vision_config` keeps its sizes, and what its class assumes (transformers 5.17).
struct Layout {
    depth: (&'static [&'static str], u64),
    width: (&'static [&'static str], u64),
    intermediate: (&'static [&'static str], u64),
    patch: u64,
    /// Frames that a patch spans.
    frames: u64,
    /// Key of the number of learned positions, or of the two sides of their grid.
    positions: Positions,
    merge: Merge,
}

enum Positions {
    Count(&'static str, u64),
    Grid(&'static [&'static str], &'static [&'static str], u64),
}

enum Merge {
    /// A list of two sides.
    Kernel(&'static str),
    /// One side.
    Side(&'static str),
}

const KIMI: Layout = Layout {
    depth: (&["vt_num_hidden_layers", "num_hidden_layers"], 27),
    width: (&["vt_hidden_size", "hidden_size"], 1152),
    intermediate: (&["vt_intermediate_size", "intermediate_size"], 4304),
    patch: 14,
    frames: 1,
    positions: Positions::Grid(&["init_pos_emb_height", "pos_emb_height"], &["init_pos_emb_width", "pos_emb_width"], 64),
    merge: Merge::Kernel("merge_kernel_size"),
};

const QWEN: Layout = Layout {
    depth: (&["depth"], 27),
    width: (&["hidden_size"], 1152),
    intermediate: (&["intermediate_size"], 4304),
    patch: 16,
    frames: 2,
    positions: Positions::Count("num_position_embeddings", 2304),
    merge: Merge::Side("spatial_merge_size"),
};

pub(super) fn kimi(ctx: &Context<'_>) -> Option<Vec<OutsideModule>> {
    tower(ctx, &KIMI)
}

pub(super) fn qwen(ctx: &Context<'_>) -> Option<Vec<OutsideModule>> {
    tower(ctx, &QWEN)
}

/// Llama 4: patches without bias, a class token, norms before and after, and an adapter that shrinks the grid of patches
/// (transformers 5.17, `Llama4VisionModel`, `Llama4VisionMLP2`, `Llama4MultiModalProjector`).
pub(super) fn llama4(ctx: &Context<'_>) -> Option<Vec<OutsideModule>> {
    let Some(vision) = ctx.root.maybe_object("vision_config")? else { return no_tower(ctx) };
    let number = |key: &str, max: u64, default: u64| vision.u64_or(&[key], 1..=max, default);
    let (depth, d) = (number("num_hidden_layers", MAX_LAYERS, 34), number("hidden_size", MAX_WIDTH, 768));
    let i = number("intermediate_size", MAX_INTERMEDIATE, 5632);
    let (image, side) = (number("image_size", MAX_WIDTH, 448), number("patch_size", 1024, 14));
    let channels = number("num_channels", 1024, 3);
    let (input, output) = (number("projector_input_dim", MAX_WIDTH, 4096), number("projector_output_dim", MAX_WIDTH, 4096));
    let features = number("vision_output_dim", MAX_WIDTH, 7680);
    let (depth, d, i, side, input, output) = (depth?, d?, i?, side?, input?, output?);
    let grid = image? / side;
    let layer = 4 * (d * d + d) + 2 * d * i + i + d + 4 * d;
    let parts = [
        side * side * channels? * d,
        grid.checked_mul(grid)?.checked_mul(d)? + 2 * d,
        depth.checked_mul(layer)?,
        4 * d,
        i * input + output * output,
        features? * hidden(ctx),
    ];
    counted(ctx, bounded(&vision, "hidden_size", parts.into_iter().try_fold(0, u64::checked_add))?)
}

/// Width of the decoder. Without one the read fails anyway, and the tower's own faults should still be found.
fn hidden(ctx: &Context<'_>) -> u64 {
    ctx.base.as_ref().map_or(1, |b| b.hidden)
}

fn no_tower(ctx: &Context<'_>) -> Option<Vec<OutsideModule>> {
    ctx.sink.warn("no vision_config: the vision tower is not counted");
    Some(Vec::new())
}

/// The ledger's entry of a tower.
fn counted(ctx: &Context<'_>, parameters: u64) -> Option<Vec<OutsideModule>> {
    // Unquantized formats have one row of any length.
    let bytes = ctx.plain().matrix_bytes(1, parameters);
    ctx.sink.warn(format!(
        "the graph leaves out the vision tower and its projector; the ledger counts their {:.2} GiB of weights on every rank",
        bytes as f64 / (1u64 << 30) as f64
    ));
    Some(vec![OutsideModule { name: "vision tower".into(), bytes_per_rank: bytes }])
}

/// A parameter count that byte counts can hold.
fn bounded(vision: &Fields<'_>, key: &str, total: Option<u64>) -> Option<u64> {
    let total = total.filter(|&t| t <= MAX_PARAMETERS);
    if total.is_none() {
        vision.fault(key, format!("and the other sizes make more than {MAX_PARAMETERS} parameters"), "a smaller tower");
    }
    total
}

/// The tower and projector of a wrapper, nothing where it has no `vision_config`.
fn tower(ctx: &Context<'_>, layout: &Layout) -> Option<Vec<OutsideModule>> {
    let Some(vision) = ctx.root.maybe_object("vision_config")? else { return no_tower(ctx) };
    counted(ctx, parameters(&vision, layout, hidden(ctx))?)
}

fn parameters(vision: &Fields<'_>, layout: &Layout, hidden: u64) -> Option<u64> {
    let number = |(keys, default): (&[&str], u64), max: u64| vision.u64_or(keys, 1..=max, default);
    let depth = number(layout.depth, MAX_LAYERS);
    let d = number(layout.width, MAX_WIDTH);
    let i = number(layout.intermediate, MAX_INTERMEDIATE);
    let side = number((&["patch_size"], layout.patch), 1024);
    let channels = number((&["in_channels"], 3), 1024);
    let frames = number((&["temporal_patch_size"], layout.frames), 1024);
    let positions = match &layout.positions {
        Positions::Count(key, default) => number((&[key], *default), MAX_WIDTH),
        Positions::Grid(height, width, default) => {
            let (height, width) = (number((height, *default), MAX_HEADS), number((width, *default), MAX_HEADS));
            height.zip(width).map(|(h, w)| h * w)
        }
    };
    let merged = merged(vision, &layout.merge);
    let token = vision.u64_or(&["text_hidden_size", "out_hidden_size"], 1..=MAX_WIDTH, hidden);
    let (depth, d, i, n, m, h) = (depth?, d?, i?, positions?, merged?, token?);
    let p = side? * side? * channels? * frames?;
    let layer = 4 * (d * d + d) + 2 * d * i + i + d + 4 * d;
    let md = m * d;
    let parts = [
        Some(p * d + d),
        n.checked_mul(d),
        depth.checked_mul(layer),
        Some(4 * d),
        md.checked_mul(md),
        Some(md),
        md.checked_mul(h),
        Some(h),
    ];
    let total = parts.into_iter().try_fold(0u64, |sum, part| sum.checked_add(part?));
    bounded(vision, layout.width.0[0], total)
}

/// Patches that one token of the decoder stands for.
fn merged(vision: &Fields<'_>, merge: &Merge) -> Option<u64> {
    match merge {
        Merge::Side(key) => vision.u64_or(&[key], 1..=64, 2).map(|s| s * s),
        Merge::Kernel(key) => match vision.maybe_numbers(key, 1..=64)? {
            None => Some(4),
            Some(sides) if sides.len() == 2 => Some(sides[0] * sides[1]),
            Some(sides) => {
                vision.fault(key, format!("has {} sizes", sides.len()), "two sizes, for example [2, 2]");
                None
            }
        },
    }
}
