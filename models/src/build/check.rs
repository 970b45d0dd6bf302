//! Contradictions of a spec or a step that would make a meaningless graph.

use crate::spec::{Attention, Ffn, GqaSpec, LinearAttentionSpec, MlaSpec, ModelSpec, MoeSpec, QkNorm, RopeSpec};
use crate::step::Step;

/// Every contradiction, one sentence each; those of several layers are listed once, with the first such layer.
pub(super) fn faults(spec: &ModelSpec, step: &Step) -> Vec<String> {
    let mut check = Check { faults: Vec::new(), place: "model".into() };
    check.positive("hidden size", spec.hidden);
    check.positive("vocabulary size", spec.vocab);
    check.fits("number of layers", spec.layers.len() as u64, u64::from(u16::MAX));
    for (i, layer) in spec.layers.iter().enumerate() {
        check.place = format!("layer {i}");
        match &layer.attention {
            Attention::Mla(s) => check.mla(s),
            Attention::Gqa(s) => check.gqa(s),
            Attention::Linear(s) => check.linear(s),
        }
        match &layer.ffn {
            Ffn::Dense(s) => check.positive("intermediate size", s.intermediate),
            Ffn::Moe(s) => check.moe(s),
        }
    }
    for (i, s) in step.sequences.iter().enumerate() {
        check.place = format!("sequence {i}");
        check.positive("number of new tokens", u64::from(s.new));
        check.fits("position of the last new token", u64::from(s.past) + u64::from(s.new), i32::MAX as u64);
    }
    check.faults
}

struct Check {
    faults: Vec<String>,
    place: String,
}

impl Check {
    /// Adds a fault unless the same one was found at an earlier place.
    fn fault(&mut self, what: String) {
        if !self.faults.iter().any(|f| f.ends_with(&what)) {
            self.faults.push(format!("{}: {what}", self.place));
        }
    }
    fn fits(&mut self, what: &str, value: u64, most: u64) {
        if value > most {
            self.fault(format!("{what} is {value}, the most is {most}"));
        }
    }
    /// At least 1, and small enough for a dimension.
    fn positive(&mut self, what: &str, value: u64) {
        if value == 0 {
            self.fault(format!("{what} is 0, the least is 1"));
        }
        self.fits(what, value, u64::from(u32::MAX));
    }
    fn divides(&mut self, what: &str, part: u32, whole: u32, of: &str) {
        if part == 0 || !whole.is_multiple_of(part) {
            self.fault(format!("{what} ({part}) does not divide {of} ({whole})"));
        }
    }
    fn rope(&mut self, rope: &RopeSpec, head_dim: u32) {
        if rope.dim == 0 || !rope.dim.is_multiple_of(2) || rope.dim > head_dim {
            self.fault(format!("rotary dimensions ({}) are not an even number from 2 to the head's {head_dim}", rope.dim));
        }
    }
    fn mla(&mut self, s: &MlaSpec) {
        let wide = |a: u32, b: u32| u64::from(a) + u64::from(b);
        self.positive("number of heads", u64::from(s.heads));
        self.positive("q_lora", u64::from(s.q_lora.unwrap_or(1)));
        self.positive("kv_lora", u64::from(s.kv_lora));
        self.positive("nope head size", u64::from(s.nope));
        self.positive("value head size", u64::from(s.v_dim));
        self.rope(&s.rope, s.rope_dim);
        if s.rope.dim != s.rope_dim {
            self.fault(format!("rotary dimensions ({}) are not the rope head size ({})", s.rope.dim, s.rope_dim));
        }
        for per_head in [wide(s.nope, s.rope_dim), wide(s.nope, s.v_dim), wide(s.kv_lora, s.rope_dim)] {
            self.fits("width of all heads", u64::from(s.heads).saturating_mul(per_head), u64::from(u32::MAX));
        }
        self.positive("sparse attention's top-k", u64::from(s.sparse_topk.unwrap_or(1)));
    }
    fn gqa(&mut self, s: &GqaSpec) {
        self.positive("number of heads", u64::from(s.heads));
        self.positive("head size", u64::from(s.head_dim));
        self.divides("number of key-value heads", s.kv_heads, s.heads, "the number of query heads");
        self.fits("width of all heads", u64::from(s.heads).saturating_mul(u64::from(s.head_dim)), u64::from(u32::MAX));
        self.positive("attention window", u64::from(s.window.unwrap_or(1)));
        match s.clip {
            Some(_) if s.qk_norm != QkNorm::Full => {
                self.fault("queries, keys and values are clipped without a norm over all of them".into())
            }
            Some(clip) if !(clip.is_finite() && clip > 0.0) => self.fault(format!("queries, keys and values are clipped at {clip}")),
            _ => {}
        }
        if let Some(rope) = &s.rope {
            self.rope(rope, s.head_dim);
        }
    }
    fn linear(&mut self, s: &LinearAttentionSpec) {
        self.divides("number of key heads", s.key_heads, s.value_heads, "the number of value heads");
        for (count, size) in [(s.key_heads, s.key_dim), (s.value_heads, s.value_dim)] {
            self.positive("width of all heads", u64::from(count).saturating_mul(u64::from(size)));
        }
        self.positive("convolution width", u64::from(s.conv_width));
    }
    fn moe(&mut self, s: &MoeSpec) {
        self.positive("number of experts", u64::from(s.experts));
        self.positive("expert intermediate size", s.intermediate);
        if s.topk == 0 || s.topk > s.experts {
            self.fault(format!("experts per token ({}) is not from 1 to the number of experts ({})", s.topk, s.experts));
        }
        self.divides("number of expert groups", s.router.groups, s.experts, "the number of experts");
        if s.router.topk_groups == 0 || s.router.topk_groups > s.router.groups {
            self.fault(format!("chosen groups ({}) is not from 1 to the number of groups ({})", s.router.topk_groups, s.router.groups));
        } else if s.router.groups > 0 && u64::from(s.experts / s.router.groups) * u64::from(s.router.topk_groups) < u64::from(s.topk) {
            self.fault(format!("the {} chosen groups hold fewer than {} experts", s.router.topk_groups, s.topk));
        }
        if let Some(shared) = &s.shared {
            self.positive("shared expert intermediate size", shared.intermediate);
        }
    }
}
