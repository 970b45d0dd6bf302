//! Draft models of speculative decoding, as far as cost and memory go: what they are follows from the target.

use crate::spec::{Activation, Attention, DenseSpec, Ffn, GqaSpec, LayerSpec, ModelSpec, QkNorm, RopeScaling, RopeSpec};
use crate::weight::WeightRole;

/// A draft model beside its target.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// The draft. Its values are not computed.
    pub spec: ModelSpec,
    /// Weights that are the target's own, and so take no memory of the draft.
    pub shared: Vec<WeightRole>,
    /// What is taken for granted about it.
    pub assumptions: Vec<String>,
}

/// Width of a head of an EAGLE-3 draft, as of the Llama layer that it is.
const EAGLE_HEAD_DIM: u32 = 128;
/// Key-value heads of that layer.
const EAGLE_KV_HEADS: u32 = 8;
/// Tokens that an EAGLE-3 head scores: published drafts map a reduced vocabulary back (`draft_vocab_size`).
const EAGLE_VOCAB: u64 = 32_000;
/// Three hidden states of the target are fused, and the layer's attention reads the embedding beside them, which doubles its input.
const EAGLE_INPUTS: u32 = 4;
/// Width of a dense MLP in hidden sizes, where the target has no dense layer to go by (Llama's 14336 / 4096).
const EAGLE_MLP_RATIO: (u64, u64) = (7, 2);
/// The embedding of the next token and the target's hidden state (`eh_proj`).
const MTP_INPUTS: u32 = 2;

/// An EAGLE-3 draft for a target: one dense Llama layer in the target's hidden size, unquantized.
pub fn eagle3(target: &ModelSpec) -> Draft {
    let plain = target.plain_format();
    let dense = target.layers.iter().find_map(|l| match &l.ffn {
        Ffn::Dense(d) => Some(d.intermediate),
        Ffn::Moe(_) => None,
    });
    let intermediate = dense.unwrap_or(target.hidden * EAGLE_MLP_RATIO.0 / EAGLE_MLP_RATIO.1);
    let heads = u32::try_from(target.hidden).unwrap_or(u32::MAX).div_ceil(EAGLE_HEAD_DIM).next_multiple_of(EAGLE_KV_HEADS);
    let rope = RopeSpec { dim: EAGLE_HEAD_DIM, theta: 10_000.0, scaling: RopeScaling::None, interleaved: false };
    let attention = GqaSpec {
        heads,
        kv_heads: EAGLE_KV_HEADS,
        head_dim: EAGLE_HEAD_DIM,
        rope: Some(rope),
        softmax_scale: 1.0 / f64::from(EAGLE_HEAD_DIM).sqrt(),
        qkv_bias: false,
        o_bias: false,
        qk_norm: QkNorm::None,
        clip: None,
        window: None,
        sinks: false,
        output_gate: false,
        format: plain,
    };
    let layer = LayerSpec {
        attention: Attention::Gqa(attention),
        ffn: Ffn::Dense(DenseSpec { intermediate, activation: Activation::Silu, bias: false, format: plain }),
    };
    let vocab = EAGLE_VOCAB.min(target.vocab);
    let assumptions = vec![format!(
        "EAGLE-3 draft: one dense {} layer of hidden size {}, {heads} heads, {EAGLE_KV_HEADS} key-value heads, MLP of {intermediate}, \
         vocabulary {vocab}; published drafts of the target may differ",
        plain.name(),
        target.hidden
    )];
    Draft { spec: drafted(target, "eagle3", layer, vocab, EAGLE_INPUTS), shared: vec![WeightRole::Embedding], assumptions }
}

/// The multi-token-prediction layer of a target, if its checkpoint has one: a layer like its last, behind a projection of both inputs; embedding
/// and head are the target's.
pub fn mtp(target: &ModelSpec) -> Option<Draft> {
    let layer = target.layers.last().filter(|_| target.mtp_layers > 0)?.clone();
    let assumptions = vec![format!(
        "the multi-token-prediction layer is like the last of {}'s layers, in its formats; it is run again for each further token",
        target.name
    )];
    let shared = vec![WeightRole::Embedding, WeightRole::LmHead];
    Some(Draft { spec: drafted(target, "mtp", layer, target.vocab, MTP_INPUTS), shared, assumptions })
}

fn drafted(target: &ModelSpec, kind: &str, layer: LayerSpec, vocab: u64, fused_inputs: u32) -> ModelSpec {
    ModelSpec {
        name: format!("{}-{kind}", target.name),
        layers: vec![layer],
        vocab,
        tied_embeddings: false,
        outside_graph: Vec::new(),
        warnings: Vec::new(),
        executable: false,
        mtp_layers: 0,
        fused_inputs,
        ..target.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BuildOptions, Deployment, Phase, Step, TensorKind, plan, zoo};

    fn weight_bytes(spec: &ModelSpec, without: &[WeightRole]) -> u64 {
        let graph = plan(spec, &Step::uniform(Phase::Decode, 1, 8), &Deployment::single(), &BuildOptions::default()).unwrap();
        let counted = |kind: &TensorKind| matches!(kind, TensorKind::Weight(w) if !without.contains(&w.role));
        graph.tensors.iter().filter(|(_, t)| counted(&t.kind)).map(|(id, _)| graph.local_bytes(id, crate::RankId(0)).unwrap()).sum()
    }

    #[test]
    fn a_draft_layer_of_deepseek_is_as_large_as_the_published_one() {
        let target = zoo::spec("deepseek-v3").unwrap();
        let draft = mtp(&target).unwrap();
        // The model card: 14 B parameters of the multi-token-prediction module beside 671 B, embedding and head (0.9 B each) among them.
        let billions = weight_bytes(&draft.spec, &draft.shared) as f64 / 1e9;
        assert!((11.0..13.0).contains(&billions), "{billions} GB in FP8");
        assert!(mtp(&zoo::spec("kimi-k2.5").unwrap()).is_none());
    }

    #[test]
    fn an_eagle_draft_fuses_four_inputs() {
        let draft = eagle3(&zoo::spec("kimi-k2.5").unwrap());
        let h = draft.spec.hidden;
        let inputs = 4 * h * h;
        let attention = h * (2 * 56 + 2 * 8) * 128;
        let mlp = 3 * h * 18_432;
        let head = 32_000 * h;
        let norms = 3 * h;
        assert_eq!(weight_bytes(&draft.spec, &draft.shared), 2 * (inputs + attention + mlp + head + norms));
    }
}
