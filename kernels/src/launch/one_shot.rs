//! Sizes of the one-shot all-reduce: up to where it is taken, where a norm is fused into it, and what a rank's window holds (exchange.cu).

/// Most ranks of a group whose memory is mapped (`MAX_RANKS` in exchange.cu).
pub const MOST_RANKS: usize = 8;
/// Most blocks of the sum alone: those of vLLM's `custom_all_reduce.cuh`.
pub const MOST_BLOCKS: u64 = 36;
/// Bytes of an element on its way.
const ELEMENT_BYTES: u64 = 2;
/// Elements that a thread takes at once, 16 bytes.
pub const AT_ONCE: u64 = 8;
/// Where a window's parts begin: `Control`, what has arrived by block and rank, two halves of staged operands, two halves of packets by rank.
pub const ARRIVED_AT: u64 = 256;
/// Staged operands.
pub const STAGED_AT: u64 = ARRIVED_AT + (MOST_BLOCKS * MOST_RANKS as u64 * 4).next_multiple_of(256);
/// Bytes of a packet for a byte that it carries: four of data and four of the epoch.
const PACKET_BYTES_PER_BYTE: u64 = 2;
/// Bytes that a rank may send, at most, in a sum with a norm. Every rank sends its operand to every other, packed, so that a byte more costs more
/// of it than of the sum alone; what it saves, a launch, a fence and a trip over the link, does not grow. On two H200 rows of 7168 took 4.9, 7.7, 10.3
/// and 15.5 us at 1, 16, 32 and 64 of them, sum and norm apart 7.8, 9.6, 10.4 and 15.3 (2026-11-30, medians of a captured step).
const FUSED_SENT_BYTES: u64 = 1 << 19;
/// Threads of a block of a fused norm.
pub const FUSED_BLOCK: u32 = 256;
/// Blocks that share a row that is too wide for one (`all_reduce_add_rms_norm_wide` in exchange.cu).
const WIDE_PARTS: u32 = 4;
/// The longest row of a fused norm: its blocks hold it in registers.
const MOST_WIDTH: u64 = AT_ONCE * FUSED_BLOCK as u64 * WIDE_PARTS as u64;

/// Blocks that share a row of a fused norm.
pub fn fused_parts(width: u64) -> u32 {
    if width <= AT_ONCE * u64::from(FUSED_BLOCK) { 1 } else { WIDE_PARTS }
}

/// The largest all-reduce among so many ranks that takes one shot: beyond it every rank reading everything costs more than the steps it saves.
/// Two ranks always take one up to the size of their buffer, four below 512 KiB, eight below 256 KiB (vLLM's `custom_all_reduce.cuh`).
pub fn one_shot_bytes(members: usize) -> u64 {
    match members {
        ..=2 => 8 << 20,
        3..=4 => (512 << 10) - 2,
        _ => (256 << 10) - 2,
    }
}

/// The largest all-reduce among so many ranks that takes one shot with the norm behind it.
pub fn fused_bytes(members: usize) -> u64 {
    FUSED_SENT_BYTES / (members as u64).saturating_sub(1).max(1)
}

/// Whether `rows` of `width` bf16 elements are summed over so many ranks, added to a residual and normed by one kernel.
pub fn fuses(members: usize, rows: u64, width: u64) -> bool {
    let fits = rows.saturating_mul(width).saturating_mul(ELEMENT_BYTES) <= fused_bytes(members);
    (2..=MOST_RANKS).contains(&members) && rows > 0 && fits && width > 0 && width.is_multiple_of(AT_ONCE) && width <= MOST_WIDTH
}

/// Elements of a half of staged operands.
pub fn half_elements(members: usize) -> u64 {
    (one_shot_bytes(members) / ELEMENT_BYTES).next_multiple_of(128)
}

/// Elements of one rank's packets in a half.
pub fn packet_elements(members: usize) -> u64 {
    (fused_bytes(members) / ELEMENT_BYTES).next_multiple_of(128)
}

/// Where packets begin.
pub fn packets_at(members: usize) -> u64 {
    STAGED_AT + 2 * half_elements(members) * ELEMENT_BYTES
}

/// Bytes of a rank's window in a group.
pub fn window_bytes(members: usize) -> u64 {
    packets_at(members) + 2 * members as u64 * packet_elements(members) * ELEMENT_BYTES * PACKET_BYTES_PER_BYTE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fused_fits_into_the_window() {
        for members in 2..=MOST_RANKS {
            let most = fused_bytes(members) / ELEMENT_BYTES;
            assert!(most <= packet_elements(members) && one_shot_bytes(members) / ELEMENT_BYTES <= half_elements(members));
            assert!(packets_at(members).is_multiple_of(16) && window_bytes(members) > packets_at(members));
            let rows = most / 4096;
            assert!(fuses(members, rows, 4096) && !fuses(members, rows + 1, 4096), "{members} ranks");
        }
    }

    #[test]
    fn a_decode_batch_of_kimi_is_fused_and_a_prompt_is_not() {
        assert!(fuses(2, 1, 7168) && fuses(2, 32, 7168) && fuses(8, 5, 7168) && !fuses(2, 64, 7168));
        // No rows, columns that no load of 16 bytes takes, too many ranks, nobody to sum with.
        assert!(!fuses(2, 0, 7168) && !fuses(2, 1, 7164) && !fuses(9, 1, 7168) && !fuses(1, 1, 7168) && !fuses(2, 1, 32_768));
    }
}
