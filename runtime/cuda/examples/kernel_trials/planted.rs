//! Wrong kernels for a check of whole runs: the changes that trials must notice, but grosser ones where a run in bf16 is allowed more than they
//! do.

use super::cases::FAMILIES;
use super::exchange::EXCHANGES;

/// By family: what stands in the sources and what is put there instead.
const GROSSER: &[(&str, (&str, &str))] = &[
    ("linear bf16", ("else ((bf16*)y)[at] = to_bf16(v);", "else ((bf16*)y)[at] = to_bf16(1.5f * v);")),
    // Without the mantissa.
    ("linear fp8", ("& 0x07f007f0u", "& 0x07800780u")),
    // Without one rank's part.
    (
        "one-shot all-reduce with norm",
        ("if (first + k < ranks) add_to(total, data[k]);", "if (first + k < ranks && first + k != 1) add_to(total, data[k]);"),
    ),
    ("router logits", ("if (s.f32_out) ((float*)y)[at] = v;", "if (s.f32_out) ((float*)y)[at] = -v;")),
];

/// Every family with a change that a whole run must notice, if it launches the family's kernels at all.
pub(crate) fn changes() -> impl Iterator<Item = (&'static str, (&'static str, &'static str))> {
    let all = FAMILIES.iter().map(|f| (f.name, f.wrong)).chain(EXCHANGES.iter().map(|f| (f.name, f.wrong)));
    all.map(|(name, wrong)| (name, GROSSER.iter().find(|(n, _)| *n == name).map_or(wrong, |(_, grosser)| *grosser)))
}
