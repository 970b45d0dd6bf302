//! The colours of the page, once: name of the CSS variable, on light, on dark. What is printed is on light.

use std::fmt::Write as _;

/// Text and lines; then `k-` classes of work, `b-` what bounds it, `p-` where figures come from, `m-` memory.
const COLOURS: &[(&str, &str, &str)] = &[
    ("bg", "#ffffff", "#14171b"),
    ("panel", "#f5f6f8", "#1d2126"),
    ("text", "#1c2127", "#e3e7ec"),
    ("muted", "#566070", "#a3adba"),
    ("line", "#d5d9e0", "#353b44"),
    ("strong", "#7a828f", "#7b8593"),
    ("accent", "#1f5fb4", "#86b4f2"),
    ("good", "#1d6b34", "#84cf98"),
    ("bad", "#a5231f", "#ff9d95"),
    ("label", "#ffffff", "#14171b"),
    ("waiting", "#e2e5ea", "#2a2f37"),
    ("waiting-line", "#7d8591", "#8a94a2"),
    ("k-attention_projection", "#2456a8", "#8fb8f5"),
    ("k-attention_core", "#0b6576", "#6fd0e0"),
    ("k-experts", "#2d6a2f", "#8ed08f"),
    ("k-shared_expert", "#5a6412", "#c3d46a"),
    ("k-router", "#6b3fa0", "#c5a6f2"),
    ("k-dense_mlp", "#0f6650", "#78d3b6"),
    ("k-head", "#4547b0", "#b0b2fa"),
    ("k-embedding", "#4d5a6b", "#b4c0cf"),
    ("k-elementwise", "#5c5c64", "#bdbdc6"),
    ("k-all_reduce", "#b23a12", "#ffab8a"),
    ("k-gather_scatter", "#8a5200", "#f2c268"),
    ("k-all_to_all", "#a3256b", "#f7a3cc"),
    ("k-send_recv", "#a51f2f", "#ff9fa8"),
    ("k-launch", "#6d5847", "#d6bfae"),
    ("b-memory", "#2456a8", "#8fb8f5"),
    ("b-compute", "#6b3fa0", "#c5a6f2"),
    ("b-kernel_latency", "#0b6576", "#6fd0e0"),
    ("b-link", "#a3256b", "#f7a3cc"),
    ("b-exchange_latency", "#b23a12", "#ffab8a"),
    ("b-launch", "#6d5847", "#d6bfae"),
    ("p-measured", "#1d6b34", "#84cf98"),
    ("p-interpolated", "#2456a8", "#8fb8f5"),
    ("p-modelled", "#8a5200", "#f2c268"),
    ("m-weights", "#2456a8", "#8fb8f5"),
    ("m-cache", "#2d6a2f", "#8ed08f"),
    ("m-staging", "#8a5200", "#f2c268"),
    ("m-context", "#4d5a6b", "#b4c0cf"),
    ("m-step", "#6b3fa0", "#c5a6f2"),
];

/// The variables as CSS: light, dark where the reader's system is, and light on paper.
pub(super) fn css() -> String {
    let variables = |dark: bool| {
        COLOURS.iter().fold(String::new(), |mut out, (name, on_light, on_dark)| {
            let _ = write!(out, "--{name}:{};", if dark { on_dark } else { on_light });
            out
        })
    };
    let (light, dark) = (variables(false), variables(true));
    format!(":root{{color-scheme:light;{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use moetwin::models::OpClass;

    /// Relative luminance (WCAG 2.2).
    fn luminance(colour: &str) -> f64 {
        let part = |i: usize| {
            let value = f64::from(u8::from_str_radix(&colour[i..i + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    fn colour(name: &str, dark: bool) -> &'static str {
        let (_, on_light, on_dark) = COLOURS.iter().find(|c| c.0 == name).unwrap();
        if dark { on_dark } else { on_light }
    }

    #[test]
    fn text_and_pictures_are_readable_in_both_schemes() {
        for dark in [false, true] {
            for surface in ["bg", "panel"] {
                for text in ["text", "muted", "accent", "good", "bad"] {
                    let ratio = contrast(colour(text, dark), colour(surface, dark));
                    assert!(ratio >= 4.5, "{text} on {surface}, dark {dark}: {ratio:.2}");
                }
                let ratio = contrast(colour("strong", dark), colour(surface, dark));
                assert!(ratio >= 3.0, "edges of controls on {surface}, dark {dark}: {ratio:.2}");
            }
            for (name, ..) in COLOURS.iter().filter(|c| ["k-", "b-", "p-", "m-"].iter().any(|p| c.0.starts_with(p))) {
                // Fills stand out from the page, and what is written on them can be read.
                assert!(contrast(colour(name, dark), colour("bg", dark)) >= 3.0, "{name}, dark {dark}");
                assert!(contrast(colour(name, dark), colour("label", dark)) >= 4.5, "label on {name}, dark {dark}");
            }
        }
    }

    #[test]
    fn every_class_of_work_has_a_colour() {
        use OpClass::*;
        let classes = [
            Embedding,
            Elementwise,
            AttentionProjection,
            AttentionCore,
            Router,
            Experts,
            SharedExpert,
            DenseMlp,
            Head,
            AllReduce,
            GatherScatter,
            AllToAll,
            SendRecv,
        ];
        for name in classes.map(OpClass::name).into_iter().chain(["launch"]) {
            assert!(COLOURS.iter().any(|c| c.0.strip_prefix("k-") == Some(name)), "{name}");
        }
    }
}
