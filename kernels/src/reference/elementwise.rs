//! Norms, sums and activations: each row on its own.

use super::array::Array;
use super::error::ReferenceError;
use super::matmul::for_rows;
use super::operands::Operands;
use super::real::Real;
use moetwin_models::spec::Activation;

/// `out = x / sqrt(mean(x^2) + eps) * weight`.
pub(super) fn norm_row<T: Real>(x: &[T], weight: &[T], eps: T, out: &mut [T]) {
    let mean_square = x.iter().map(|v| *v * *v).sum::<T>() / T::from_f64(x.len() as f64);
    let inverse = T::ONE / (mean_square + eps).sqrt();
    for ((o, v), w) in out.iter_mut().zip(x).zip(weight) {
        *o = *v * inverse * *w;
    }
}

/// `(x[T, H], w[H]) -> y[T, H]`.
pub(super) fn rms_norm<T: Real>(operands: Operands<'_, T>, eps: f64, outputs: &mut [Array<T>]) -> Result<(), ReferenceError> {
    operands.expect(2, 2)?;
    let x = operands.matrix(0, "x")?;
    let weight = operands.vector_of(1, "weight", x.cols)?;
    let [y] = operands.results(outputs)?;
    let y = operands.result(y, "y", x.rows, x.cols)?;
    for_rows(y, x.cols, |row, out| norm_row(x.row(row), weight, T::from_f64(eps), out));
    Ok(())
}

/// `(delta[T, H], residual[T, H], w[H]) -> (y[T, H], sum[T, H])`.
pub(super) fn add_rms_norm<T: Real>(operands: Operands<'_, T>, eps: f64, outputs: &mut [Array<T>]) -> Result<(), ReferenceError> {
    operands.expect(3, 3)?;
    let delta = operands.matrix(0, "delta")?;
    let residual = operands.matrix_of(1, "residual", delta.rows, delta.cols)?;
    let weight = operands.vector_of(2, "weight", delta.cols)?;
    let [y, sum] = operands.results(outputs)?;
    let y = operands.result(y, "y", delta.rows, delta.cols)?;
    let sum = operands.result(sum, "sum", delta.rows, delta.cols)?;
    for_rows(sum, delta.cols, |row, out| add_row(delta.row(row), residual.row(row), out));
    let sum = &*sum;
    for_rows(y, delta.cols, |row, out| {
        norm_row(&sum[row * delta.cols..(row + 1) * delta.cols], weight, T::from_f64(eps), out);
    });
    Ok(())
}

/// `(a, b) -> a + b`.
pub(super) fn add<T: Real>(operands: Operands<'_, T>, outputs: &mut [Array<T>]) -> Result<(), ReferenceError> {
    operands.expect(2, 2)?;
    let a = operands.matrix(0, "a")?;
    let b = operands.matrix_of(1, "b", a.rows, a.cols)?;
    let [sum] = operands.results(outputs)?;
    let sum = operands.result(sum, "sum", a.rows, a.cols)?;
    for_rows(sum, a.cols, |row, out| add_row(a.row(row), b.row(row), out));
    Ok(())
}

fn add_row<T: Real>(a: &[T], b: &[T], out: &mut [T]) {
    for ((o, a), b) in out.iter_mut().zip(a).zip(b) {
        *o = *a + *b;
    }
}

/// `(gate_up[T, gate | up]) -> h[T, I]`.
pub(super) fn gated_activation<T: Real>(
    operands: Operands<'_, T>,
    activation: Activation,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    operands.expect(1, 1)?;
    let gate_up = operands.matrix(0, "gate_up")?;
    if !gate_up.cols.is_multiple_of(2) {
        return Err(operands.mismatch(0, "gate_up", "an even number of columns, gate and up"));
    }
    let [h] = operands.results(outputs)?;
    let h = operands.result(h, "h", gate_up.rows, gate_up.cols / 2)?;
    for_rows(h, gate_up.cols / 2, |row, out| activate_row(activation, gate_up.row(row), out));
    Ok(())
}

/// `out = activation(gate, up)` with `gate_up` holding first all gates, then all ups.
pub(super) fn activate_row<T: Real>(activation: Activation, gate_up: &[T], out: &mut [T]) {
    let (gate, up) = gate_up.split_at(out.len());
    match activation {
        Activation::Silu => {
            for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
                *o = *g * g.sigmoid() * *u;
            }
        }
        Activation::ClampedSwiglu { alpha, limit } => {
            let (alpha, limit) = (T::from_f64(alpha), T::from_f64(limit));
            for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
                let gate = clamp_above(*g, limit);
                let up = clamp(*u, limit);
                *o = (up + T::ONE) * (gate * (alpha * gate).sigmoid());
            }
        }
    }
}

/// At most `limit`; what is not a number stays so.
fn clamp_above<T: Real>(value: T, limit: T) -> T {
    if value > limit { limit } else { value }
}

/// From `-limit` to `limit`; what is not a number stays so.
fn clamp<T: Real>(value: T, limit: T) -> T {
    -clamp_above(-clamp_above(value, limit), limit)
}

/// `(y[T, H], score[T, 1]) -> y * sigmoid(score)`, or element by element with `score[T, H]`.
pub(super) fn sigmoid_scale<T: Real>(operands: Operands<'_, T>, outputs: &mut [Array<T>]) -> Result<(), ReferenceError> {
    operands.expect(2, 2)?;
    let y = operands.matrix(0, "y")?;
    let score = operands.matrix(1, "score")?;
    if score.rows != y.rows || (score.cols != 1 && score.cols != y.cols) {
        return Err(operands.mismatch(1, "score", format!("[{}, 1] or [{}, {}]", y.rows, y.rows, y.cols)));
    }
    let [out] = operands.results(outputs)?;
    let out = operands.result(out, "scaled", y.rows, y.cols)?;
    for_rows(out, y.cols, |row, out| {
        // One score stands for the whole row.
        for ((o, v), s) in out.iter_mut().zip(y.row(row)).zip(score.row(row).iter().cycle()) {
            *o = *v * s.sigmoid();
        }
    });
    Ok(())
}

/// `(qkv[T, q | k | v], q_norm[q], k_norm[k]) -> qkv`, every element at most `clip` in size.
pub(super) fn qk_norm<T: Real>(
    operands: Operands<'_, T>,
    eps: f64,
    clip: Option<f64>,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    operands.expect(3, 3)?;
    let qkv = operands.matrix(0, "qkv")?;
    let (q_norm, k_norm) = (operands.vector(1, "q_norm")?, operands.vector(2, "k_norm")?);
    let (q, k) = (q_norm.len(), q_norm.len() + k_norm.len());
    if k > qkv.cols {
        return Err(operands.mismatch(0, "qkv", format!("at least the {k} columns of both norms")));
    }
    let [out] = operands.results(outputs)?;
    let out = operands.result(out, "qkv", qkv.rows, qkv.cols)?;
    let (eps, clip) = (T::from_f64(eps), clip.map(T::from_f64));
    for_rows(out, qkv.cols, |row, out| {
        let row = qkv.row(row);
        norm_row(&row[..q], q_norm, eps, &mut out[..q]);
        norm_row(&row[q..k], k_norm, eps, &mut out[q..k]);
        out[k..].copy_from_slice(&row[k..]);
        if let Some(clip) = clip {
            out.iter_mut().for_each(|v| *v = clamp(*v, clip));
        }
    });
    Ok(())
}
