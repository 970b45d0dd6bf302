//! Feed-forward blocks: one gated MLP, or routed experts with an optional shared one.

use super::builder::{Builder, Projection};
use crate::ids::TensorId;
use crate::op::{LinearRole, Op};
use crate::spec::{Activation, DenseSpec, MoeSpec, SharedExpertSpec};
use crate::weight::WeightRole;
use crate::{DType, Dim, WeightFormat};

/// A gated MLP to be added.
struct Mlp {
    name: &'static str,
    gate_up: (LinearRole, WeightRole),
    down: (LinearRole, WeightRole),
    intermediate: u64,
    activation: Activation,
    /// Biases of the two projections.
    bias: Option<(WeightRole, WeightRole)>,
    format: WeightFormat,
}

fn gated_mlp(b: &mut Builder<'_>, x: TensorId, m: &Mlp) -> TensorId {
    let dtype = b.spec.dtype;
    let hidden = b.hidden();
    let inner = Dim::packed(m.intermediate, 1);
    let gate_up = Projection {
        role: m.gate_up.0,
        name: &format!("{}.gate_up", m.name),
        weight: m.gate_up.1,
        bias: m.bias.map(|b| b.0),
        rows: Dim::gate_up(m.intermediate),
        cols: hidden.clone(),
        format: m.format,
    };
    let gate_up = b.project(x, gate_up);
    let activation = Op::GatedActivation { activation: m.activation };
    let h = b.one(activation, vec![gate_up], &format!("{}.act", m.name), vec![Dim::Tokens, inner.clone()], dtype);
    let down = Projection {
        role: m.down.0,
        name: &format!("{}.down", m.name),
        weight: m.down.1,
        bias: m.bias.map(|b| b.1),
        rows: hidden,
        cols: inner,
        format: m.format,
    };
    b.project(h, down)
}

/// A dense layer's MLP of `x[T, H]`.
pub(super) fn dense(b: &mut Builder<'_>, s: &DenseSpec, x: TensorId) -> TensorId {
    let mlp = Mlp {
        name: "mlp",
        gate_up: (LinearRole::DenseGateUp, WeightRole::DenseGateUp),
        down: (LinearRole::DenseDown, WeightRole::DenseDown),
        intermediate: s.intermediate,
        activation: s.activation,
        bias: s.bias.then_some((WeightRole::DenseGateUpBias, WeightRole::DenseDownBias)),
        format: s.format,
    };
    gated_mlp(b, x, &mlp)
}

/// Routed experts, and the shared one, of `x[T, H]`.
pub(super) fn moe(b: &mut Builder<'_>, s: &MoeSpec, x: TensorId) -> TensorId {
    let (ids, weights) = route(b, s, x);
    let hidden = b.hidden();
    let experts = Dim::Experts(u64::from(s.experts));
    let (gate_up, inner) = (Dim::gate_up(s.intermediate), Dim::packed(s.intermediate, 1));
    let mut operands = vec![x, ids, weights];
    let gate_up_shape = vec![experts.clone(), gate_up.clone(), hidden.clone()];
    operands.push(b.weight("moe.experts.gate_up.weight", WeightRole::ExpertsGateUp, gate_up_shape, s.format));
    let down_shape = vec![experts.clone(), hidden.clone(), inner];
    operands.push(b.weight("moe.experts.down.weight", WeightRole::ExpertsDown, down_shape, s.format));
    if s.expert_bias {
        let format = b.spec.plain_format();
        let gate_up_bias = vec![experts.clone(), gate_up];
        operands.push(b.weight("moe.experts.gate_up.bias", WeightRole::ExpertsGateUpBias, gate_up_bias, format));
        operands.push(b.weight("moe.experts.down.bias", WeightRole::ExpertsDownBias, vec![experts, hidden.clone()], format));
    }
    let dtype = b.spec.dtype;
    let shape = vec![Dim::Tokens, hidden];
    let routed = b.one(Op::Experts { activation: s.activation }, operands, "moe.experts", shape.clone(), dtype);
    match &s.shared {
        None => routed,
        Some(shared) => {
            let shared = shared_expert(b, shared, s.activation, x);
            b.one(Op::Add, vec![routed, shared], "moe.sum", shape, dtype)
        }
    }
}

/// `(ids[T, k], weights[T, k])`. Router logits, scores and weights are f32, as engines and checkpoints' own code compute them.
fn route(b: &mut Builder<'_>, s: &MoeSpec, x: TensorId) -> (TensorId, TensorId) {
    let experts = Dim::Fixed(u64::from(s.experts));
    let format = b.spec.plain_format();
    let router = Projection {
        role: LinearRole::Router,
        name: "moe.router",
        weight: WeightRole::Router,
        bias: s.router.logits_bias.then_some(WeightRole::RouterBias),
        rows: experts.clone(),
        cols: b.hidden(),
        format,
    };
    let logits = b.project_to(x, router, DType::F32);
    let mut operands = vec![logits];
    if s.router.correction_bias {
        operands.push(b.weight("moe.correction_bias", WeightRole::CorrectionBias, vec![experts], WeightFormat::F32));
    }
    let chosen = vec![Dim::Tokens, Dim::Fixed(u64::from(s.topk))];
    let mut ids = b.activation("moe.ids", chosen.clone());
    ids.dtype = DType::I32;
    let mut weights = b.activation("moe.weights", chosen);
    weights.dtype = DType::F32;
    let out = b.node(Op::Route { router: s.router.clone(), topk: s.topk }, operands, vec![ids, weights]);
    let layer = b.layer();
    b.dump(format!("router.{layer}.experts"), out[0]);
    b.dump(format!("router.{layer}.weights"), out[1]);
    (out[0], out[1])
}

fn shared_expert(b: &mut Builder<'_>, s: &SharedExpertSpec, activation: Activation, x: TensorId) -> TensorId {
    let mlp = Mlp {
        name: "moe.shared",
        gate_up: (LinearRole::SharedGateUp, WeightRole::SharedGateUp),
        down: (LinearRole::SharedDown, WeightRole::SharedDown),
        intermediate: s.intermediate,
        activation,
        bias: s.bias.then_some((WeightRole::SharedGateUpBias, WeightRole::SharedDownBias)),
        format: s.format,
    };
    let y = gated_mlp(b, x, &mlp);
    if !s.gated {
        return y;
    }
    let format = b.spec.plain_format();
    let score = Projection {
        role: LinearRole::SharedGate,
        name: "moe.shared.score",
        weight: WeightRole::SharedGate,
        bias: None,
        rows: Dim::Fixed(1),
        cols: b.hidden(),
        format,
    };
    let score = b.project(x, score);
    let (shape, dtype) = (b.shape(y).to_vec(), b.spec.dtype);
    b.one(Op::SigmoidScale, vec![y, score], "moe.shared.scaled", shape, dtype)
}
