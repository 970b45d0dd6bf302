//! Random exchanges among ranks that share the GPU, against the CPU reference: odd sizes, ranks without rows, experts without rows, all rows to
//! one rank, buffers that are just large enough and just too small. Nothing is rounded twice, so results must be equal.

use super::build::Numbers;
use half::bf16;
use moetwin_cuda::exec::compile::Cubins;
use moetwin_cuda::exec::trial_exchange::{Ranks, Rows};
use moetwin_cuda::exec::window::one_shot_bytes;
use moetwin_kernels::reference::collective::{DispatchSource, combine, dispatch};
use moetwin_kernels::reference::{Array, Data};
use std::error::Error;
use std::time::Duration;

/// A family of exchanges: its name, a random case of it, and a change of the sources that its cases must notice.
pub(crate) struct ExchangeFamily {
    pub(crate) name: &'static str,
    case: fn(&mut Ranks, &mut Numbers, usize) -> Checked,
    pub(crate) wrong: (&'static str, &'static str),
}

/// From an abort to the end of a wait.
const STOP_LIMIT: Duration = Duration::from_millis(100);

type Checked = Result<Result<(), String>, Box<dyn Error>>;

pub(crate) const EXCHANGES: &[ExchangeFamily] = &[
    ExchangeFamily { name: "one-shot all-reduce", case: sums, wrong: ("sum[j] += v[r][j];", "sum[j] += r == 1 ? v[0][j] : v[r][j];") },
    ExchangeFamily {
        name: "one-shot all-reduce, odd sizes",
        case: odd_sums,
        wrong: ("sum += f32(peers->staged[r][half + i]);", "sum += f32(peers->staged[r][i]);"),
    },
    ExchangeFamily { name: "packed dispatch", case: rows, wrong: ("goes |= id >= low && id < high;", "goes |= id > low && id < high;") },
    ExchangeFamily { name: "packed combine", case: rows, wrong: ("if (slot >= 0) sum += f32(packed[", "if (slot > 0) sum += f32(packed[") },
    ExchangeFamily {
        name: "full buffers",
        case: overflow,
        wrong: ("if (threadIdx.x == 0 && count > capacity) report", "if (threadIdx.x == 0 && count > capacity + 1) report"),
    },
    ExchangeFamily { name: "columns", case: columns, wrong: ("* in_width + from + i]", "* in_width + i]") },
    ExchangeFamily {
        name: "rounding of sums",
        case: rounding,
        wrong: ("out[i] = to_bf16(in[i]);", "out[i] = __float2bfloat16_rz(in[i]);"),
    },
];

/// Runs cases of a family among 2, 3 and 8 ranks; the first fault.
pub(crate) fn cases(cubins: &Cubins, search: &moetwin_cuda::Search, family: &ExchangeFamily, seed: u64, count: u64) -> Checked {
    for members in [2usize, 3, 8] {
        let mut ranks = Ranks::open(search, cubins, members)?;
        for i in 0..count.div_ceil(3) {
            let seed = seed.wrapping_add(i);
            let checked = (family.case)(&mut ranks, &mut Numbers::new(seed), members)?;
            ranks.free();
            if let Err(e) = checked {
                return Ok(Err(format!("seed {seed}, {members} ranks: {e}")));
            }
        }
    }
    Ok(Ok(()))
}

/// A rank whose peers do not come ends, and says whom it waited for.
pub(crate) fn nobody_comes(cubins: &Cubins, search: &moetwin_cuda::Search) -> Checked {
    let noted = Ranks::open(search, cubins, 3)?.all_reduce_alone()?;
    Ok(match noted {
        [1, 77, 1 | 2, 0] => Ok(()),
        other => Err(format!("noted {other:?}")),
    })
}

/// A rank whose peers do not come ends at once when the run is aborted, whatever its bound.
pub(crate) fn stopped(cubins: &Cubins, search: &moetwin_cuda::Search) -> Checked {
    let (noted, took) = Ranks::open(search, cubins, 3)?.all_reduce_stopped()?;
    Ok(match noted {
        [1, 77, 1 | 2, 0] if took < STOP_LIMIT => Ok(()),
        other => Err(format!("noted {other:?}, {took:?} after the abort")),
    })
}

/// Values that bf16 holds.
fn reals(n: &mut Numbers, sizes: &[usize], scale: f64) -> Array<f32> {
    let values = n.reals(sizes.iter().product(), scale);
    Array { sizes: sizes.to_vec(), data: Data::Real(values.into_iter().map(|v| bf16::from_f64(v).to_f32()).collect()) }
}

fn values(array: &Array<f32>) -> &[f32] {
    match &array.data {
        Data::Real(v) => v,
        Data::Int(_) => &[],
    }
}

/// Equal bit by bit, but any NaN is any other.
fn equal(what: &str, got: &Array<f32>, expected: &Array<f32>) -> Result<(), String> {
    let different = match (&got.data, &expected.data) {
        (Data::Int(a), Data::Int(b)) => a.iter().zip(b).position(|(a, b)| a != b).map(|i| (i, a[i].to_string(), b[i].to_string())),
        (Data::Real(a), Data::Real(b)) => {
            let other = |(a, b): (&f32, &f32)| a != b && !(a.is_nan() && b.is_nan());
            a.iter().zip(b).position(other).map(|i| (i, a[i].to_string(), b[i].to_string()))
        }
        _ => return Err(format!("{what}: ids and reals mixed")),
    };
    match different {
        Some((i, got, expected)) => Err(format!("{what}: element {i} is {got}, expected {expected}")),
        None if got.sizes != expected.sizes => Err(format!("{what}: sizes {:?}, expected {:?}", got.sizes, expected.sizes)),
        None => Ok(()),
    }
}

/// The sum in the order of ranks, in f32, rounded once.
fn summed(operands: &[Array<f32>]) -> Array<f32> {
    let count = operands.first().map_or(0, |o| o.data.len());
    let sum = |i: usize| bf16::from_f32(operands.iter().fold(0.0, |sum, o| sum + values(o)[i])).to_f32();
    Array { sizes: operands[0].sizes.clone(), data: Data::Real((0..count).map(sum).collect()) }
}

fn sum_of(ranks: &mut Ranks, n: &mut Numbers, members: usize, sizes: &[usize]) -> Checked {
    // One after the other, since windows keep their halves and epochs from call to call.
    for &count in sizes {
        let operands: Vec<Array<f32>> = (0..members).map(|_| reals(n, &[count], 3.0)).collect();
        let expected = summed(&operands);
        for (rank, got) in ranks.all_reduce(&operands)?.iter().enumerate() {
            if let Err(e) = equal(&format!("rank {rank} of a sum of {count}"), got, &expected) {
                return Ok(Err(e));
            }
        }
    }
    Ok(Ok(()))
}

fn sums(ranks: &mut Ranks, n: &mut Numbers, members: usize) -> Checked {
    // All ranks' blocks must find room on the one GPU at once: 128 of them, each of 4096 elements.
    let most = (one_shot_bytes(members) as usize / 2 / 8 * 8).min(128 / members * 4096);
    let sizes: Vec<usize> = (0..5).map(|_| n.pick(&[8, 64, 7168, 8 * 7168, 57_344, 100_000]).min(most)).collect();
    sum_of(ranks, n, members, &sizes)
}

fn odd_sums(ranks: &mut Ranks, n: &mut Numbers, members: usize) -> Checked {
    let sizes: Vec<usize> = (0..5).map(|_| n.pick(&[1, 7, 9, 513, 4097, 36_001])).collect();
    sum_of(ranks, n, members, &sizes)
}

/// Rows of every rank, and the bounds of its experts.
fn drawn(n: &mut Numbers, members: usize) -> (Vec<Rows>, Vec<i32>) {
    let hidden = n.pick(&[8usize, 7, 64, 130, 1024]);
    let topk = n.pick(&[1usize, 2, 8]);
    let each = n.pick(&[1i32, 2, 5]);
    let experts = each * members as i32;
    let kind = n.below(4);
    let one = |n: &mut Numbers| {
        let rows = n.pick(&[0usize, 1, 2, 9, 33, 300]);
        let id = |n: &mut Numbers| match kind {
            // All rows to the experts of one rank; choices that are absent.
            0 => each + n.below(each as u64) as i32,
            1 if n.below(2) == 0 => -1,
            _ => n.below(experts as u64) as i32,
        };
        let ids = (0..rows * topk).map(|_| id(n)).collect();
        Rows {
            x: reals(n, &[rows, hidden], 1.0),
            ids: Array { sizes: vec![rows, topk], data: Data::Int(ids) },
            weights: reals(n, &[rows, topk], 1.0),
        }
    };
    ((0..members).map(|_| one(n)).collect(), (0..=members as i32).map(|m| m * each).collect())
}

/// How many rows of each rank go to each other one.
fn counts(rows: &[Rows], bounds: &[i32]) -> Vec<Vec<u64>> {
    let of = |r: &Rows, held: &[i32]| {
        let Data::Int(ids) = &r.ids.data else { return 0 };
        ids.chunks_exact(r.ids.sizes[1]).filter(|row| row.iter().any(|id| (held[0]..held[1]).contains(id))).count() as u64
    };
    rows.iter().map(|r| bounds.windows(2).map(|held| of(r, held)).collect()).collect()
}

fn slots_of(rows: &[Rows]) -> u64 {
    rows.iter().map(|r| r.x.sizes[0]).max().unwrap_or(0).max(1) as u64
}

fn rows(ranks: &mut Ranks, n: &mut Numbers, members: usize) -> Checked {
    let (list, bounds) = drawn(n, members);
    let slots = slots_of(&list);
    // Just as much room as is needed.
    let capacity = counts(&list, &bounds).iter().flatten().copied().max().unwrap_or(0).max(1);
    let dispatched = ranks.dispatch(&list, &bounds, slots, capacity)?;
    if let Some(fault) = dispatched.faults.iter().find(|f| f[0] != 0) {
        return Ok(Err(format!("noted {fault:?}")));
    }
    let sources: Vec<DispatchSource<'_, f32>> = list.iter().map(|r| DispatchSource { x: &r.x, ids: &r.ids, weights: &r.weights }).collect();
    let (held, hidden, topk) = (members * slots as usize, list[0].x.sizes[1], list[0].ids.sizes[1]);
    let mut computed = Vec::new();
    for (rank, got) in dispatched.received.iter().enumerate() {
        let real = |width: usize| Array { sizes: vec![held, width], data: Data::Real(vec![0.0f32; held * width]) };
        let mut expected = [real(hidden), Array { sizes: vec![held, topk], data: Data::Int(vec![0; held * topk]) }, real(topk)];
        dispatch(&sources, bounds[rank]..bounds[rank + 1], &mut expected)?;
        for (what, (got, expected)) in ["values", "ids", "weights"].into_iter().zip(got.iter().zip(&expected)) {
            if let Err(e) = equal(&format!("{what} on rank {rank}"), got, expected) {
                return Ok(Err(e));
            }
        }
        // Rows that did not come have no experts, so their results may be anything.
        let Data::Int(ids) = &expected[1].data else { continue };
        let Array { sizes, data: Data::Real(mut made) } = reals(n, &[held, hidden], 2.0) else { continue };
        for (row, chosen) in ids.chunks_exact(topk).enumerate() {
            if chosen.iter().all(|id| *id < 0) {
                made[row * hidden..(row + 1) * hidden].fill(f32::NAN);
            }
        }
        computed.push(Array { sizes, data: Data::Real(made) });
    }
    let results = ranks.combine(&dispatched, &computed)?;
    // The reference sums the slots of all ranks, so those without a row hold zeros there.
    let zeros = |a: &Array<f32>| Array {
        sizes: a.sizes.clone(),
        data: Data::Real(values(a).iter().map(|v| if v.is_nan() { 0.0 } else { *v }).collect()),
    };
    let parts: Vec<Array<f32>> = computed.iter().map(zeros).collect();
    let borrowed: Vec<&Array<f32>> = parts.iter().collect();
    for (rank, got) in results.iter().enumerate() {
        let mut expected = Array { sizes: got.sizes.clone(), data: Data::Real(vec![0.0f32; got.data.len()]) };
        combine(&borrowed, rank, &mut expected)?;
        let rounded = values(&expected).iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
        expected.data = Data::Real(rounded);
        if let Err(e) = equal(&format!("sums on rank {rank}"), got, &expected) {
            return Ok(Err(e));
        }
    }
    Ok(Ok(()))
}

/// One slot too few for the fullest pair: that pair, and its rows, must be noted.
fn overflow(ranks: &mut Ranks, n: &mut Numbers, members: usize) -> Checked {
    let (list, bounds) = drawn(n, members);
    let counts = counts(&list, &bounds);
    let most = counts.iter().flatten().copied().max().unwrap_or(0);
    if most < 2 {
        return Ok(Ok(()));
    }
    let dispatched = ranks.dispatch(&list, &bounds, slots_of(&list), most - 1)?;
    for (rank, (noted, counts)) in dispatched.faults.iter().zip(&counts).enumerate() {
        let full: Vec<usize> = (0..members).filter(|m| counts[*m] == most).collect();
        let right = match noted {
            [0, ..] => full.is_empty(),
            [what, command, member, count] => (*what, *command, u64::from(*count)) == (2, 77, most) && full.contains(&(*member as usize)),
        };
        if !right {
            return Ok(Err(format!("rank {rank} noted {noted:?}, where {counts:?} rows find room for {}", most - 1)));
        }
    }
    Ok(Ok(()))
}

fn columns(ranks: &mut Ranks, n: &mut Numbers, _: usize) -> Checked {
    let (rows, cols) = (n.pick(&[1usize, 3, 40]), n.pick(&[5usize, 64, 700]));
    let width = 1 + n.below(cols as u64);
    let (from, wide) = (n.below(cols as u64 - width + 1), width + n.below(9));
    let to = n.below(wide - width + 1);
    let matrix = reals(n, &[rows, cols], 1.0);
    let got = ranks.columns(&matrix, from, to, width, wide)?;
    let at = |row: usize, col: u64| match (to..to + width).contains(&col) {
        true => values(&matrix)[row * cols + (from + col - to) as usize],
        false => f32::NAN,
    };
    let expected = (0..rows).flat_map(|row| (0..wide).map(move |col| (row, col))).map(|(row, col)| at(row, col)).collect();
    Ok(equal("columns", &got, &Array { sizes: vec![rows, wide as usize], data: Data::Real(expected) }))
}

fn rounding(ranks: &mut Ranks, n: &mut Numbers, _: usize) -> Checked {
    let count = n.pick(&[1usize, 255, 256, 257, 70_001]);
    let list: Vec<f32> = n.reals(count, 4.0).into_iter().map(|v| v as f32).collect();
    let expected = list.iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
    let got = ranks.rounded(&Array { sizes: vec![count], data: Data::Real(list) })?;
    Ok(equal("rounding", &got, &Array { sizes: vec![count], data: Data::Real(expected) }))
}
