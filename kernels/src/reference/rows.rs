//! Ops that pick rows: embedding, selection of the rows that reach the head, argmax.

use super::array::Array;
use super::error::ReferenceError;
use super::matmul::for_rows;
use super::operands::Operands;
use super::real::Real;
use super::{CacheSlot, LocalContext};
use moetwin_models::LogitsRows;

/// `(ids[T], table[V, H]) -> x[T, H]`; zeros for ids outside the slice held here.
pub(super) fn embed<T: Real>(
    operands: Operands<'_, T>,
    context: &LocalContext<'_>,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    operands.expect(2, 2)?;
    let ids = operands.ids(0, "ids")?;
    let ids = operands.id_vector(0, "ids", ids.rows)?;
    let table = operands.matrix(1, "table")?;
    let [x] = operands.results(outputs)?;
    let x = operands.result(x, "x", ids.len(), table.cols)?;
    if let Some(row) = ids.iter().position(|id| *id < 0) {
        return Err(operands.value("ids", row, format!("token id {} is negative", ids[row])));
    }
    for_rows(x, table.cols, |row, out| match (ids[row] as usize).checked_sub(context.vocab_start) {
        Some(local) if local < table.rows => out.copy_from_slice(table.row(local)),
        _ => out.fill(T::ZERO),
    });
    Ok(())
}

/// `(x[T, H]) -> x[LogitsRows, H]`.
pub(super) fn select<T: Real>(
    operands: Operands<'_, T>,
    context: &LocalContext<'_>,
    outputs: &mut [Array<T>],
) -> Result<(), ReferenceError> {
    operands.expect(1, 1)?;
    let x = operands.matrix(0, "x")?;
    check_tokens(&operands, context.sequences, x.rows, "x")?;
    let rows = match context.logits {
        LogitsRows::All => (0..x.rows).collect(),
        LogitsRows::Last => last_rows(&operands, context.sequences)?,
    };
    let [y] = operands.results(outputs)?;
    let y = operands.result(y, "x", rows.len(), x.cols)?;
    for_rows(y, x.cols, |row, out| out.copy_from_slice(x.row(rows[row])));
    Ok(())
}

fn last_rows<T: Real>(operands: &Operands<'_, T>, sequences: &[CacheSlot]) -> Result<Vec<usize>, ReferenceError> {
    let mut end = 0;
    let rows = sequences.iter().enumerate().map(|(i, s)| {
        end += s.new_tokens();
        if s.new_tokens() == 0 {
            return Err(operands.value("x", i, "the sequence has no new token, so it has no last one"));
        }
        Ok(end - 1)
    });
    rows.collect()
}

/// `(logits[LogitsRows, V]) -> ids[LogitsRows]`, ties to the lowest id, -1 for a row with a value that is no finite number:
/// then the others are not to be trusted either.
pub(super) fn argmax<T: Real>(operands: Operands<'_, T>, outputs: &mut [Array<T>]) -> Result<(), ReferenceError> {
    operands.expect(1, 1)?;
    let logits = operands.matrix(0, "logits")?;
    if logits.cols == 0 && logits.rows > 0 {
        return Err(operands.mismatch(0, "logits", "a vocabulary of at least one token"));
    }
    let [ids] = operands.results(outputs)?;
    let ids = operands.id_result(ids, "ids", &[logits.rows])?;
    for_rows(ids, 1, |row, out| {
        let row = logits.row(row);
        let finite = row.iter().all(|v| v.to_f64().is_finite());
        out[0] = if finite { (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as i32 } else { -1 };
    });
    Ok(())
}

/// Errors unless the sequences' new tokens are the operand's rows.
pub(super) fn check_tokens<T: Real>(
    operands: &Operands<'_, T>,
    sequences: &[CacheSlot],
    rows: usize,
    operand: &'static str,
) -> Result<(), ReferenceError> {
    let tokens: usize = sequences.iter().map(CacheSlot::new_tokens).sum();
    if tokens == rows {
        return Ok(());
    }
    Err(operands.value(operand, rows, format!("{rows} rows, the step's sequences have {tokens} new tokens")))
}

/// Errors unless every sequence's rows lie inside a cache of `rows` rows.
pub(super) fn check_cache<T: Real>(operands: &Operands<'_, T>, sequences: &[CacheSlot], rows: usize) -> Result<(), ReferenceError> {
    for (i, s) in sequences.iter().enumerate() {
        if s.cache_start.checked_add(s.kv_rows()).is_none_or(|end| end > rows) {
            let problem = format!("rows {}.. + {} leave the cache, which has {rows}", s.cache_start, s.kv_rows());
            return Err(operands.value("cache", i, problem));
        }
    }
    Ok(())
}
