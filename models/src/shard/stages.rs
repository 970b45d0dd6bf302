//! Which layers a pipeline stage has.

use std::ops::Range;

/// Layers of stage `stage` of `stages`: contiguous, the first `layers % stages` stages one more than the rest, since the last one also has the head.
pub fn stage_layers(layers: u16, stage: u16, stages: u16) -> Range<u16> {
    let (base, extra) = (layers / stages, layers % stages);
    let start = stage * base + stage.min(extra);
    start..start + base + u16::from(stage < extra)
}

/// Stage of a layer.
pub(super) fn stage_of(layer: u16, layers: u16, stages: u16) -> u16 {
    let (base, extra) = (layers / stages, layers % stages);
    let long = extra * (base + 1);
    if layer < long { layer / (base + 1) } else { extra + (layer - long) / base.max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_hold_every_layer_once_and_agree_with_the_inverse() {
        for layers in 1..=20 {
            for stages in 1..=layers {
                let mut next = 0;
                for s in 0..stages {
                    let r = stage_layers(layers, s, stages);
                    assert!(r.start == next && !r.is_empty());
                    next = r.end;
                    assert!(r.clone().all(|l| stage_of(l, layers, stages) == s));
                }
                assert_eq!(next, layers);
            }
        }
    }
}
