use super::*;

fn tables(gpu: &str) -> KernelTables {
    KernelTables::for_gpu(gpu, Kernels::Sglang).expect("tables ship for it")
}

const RTX: &str = "RTX PRO 6000 Blackwell Server Edition";
const H200: &str = "H200 SXM";

fn us(gpu: &str, query: Query) -> (f64, Fit) {
    let e = tables(gpu).estimate(&query).expect("covered");
    (e.us, e.fit)
}

fn kimi(distinct: u64, pairs: u64) -> Query {
    Query::Experts(ExpertsShape { hidden: 7168, intermediate: 256, local_experts: 384, distinct, pairs }, Element::Int4)
}

#[test]
fn a_measured_point_read_from_memory_is_returned_as_it_is() {
    let (time, fit) = us(RTX, Query::Gemm(GemmShape { m: 1, n: 8192, k: 7168 }, Element::Bf16));
    assert!((time - 85.9).abs() < 1e-9 && fit == Fit::Exact, "{time}");
    let (time, fit) = us(RTX, kimi(64, 64));
    assert!((time - 151.82).abs() < 1e-9 && fit == Fit::Exact, "{time}");
}

#[test]
fn warm_rows_are_not_memory_rows() {
    // The table says 23.067 us for 24.8 MB, which is what they take from L2; from memory alone they take 16.5 us on top of a floor of 17.6.
    let (time, fit) = us(RTX, kimi(8, 8));
    assert!((30.0..37.0).contains(&time) && fit == Fit::Inside, "{time}");
    // Below L2 size the GEMM table exceeds the memory rate; the estimate must not.
    let shape = GemmShape { m: 1, n: 4096, k: 2048 };
    let (time, _) = us(RTX, Query::Gemm(shape, Element::Bf16));
    assert!(4096.0 * 2048.0 * 2.0 / time < 1597e3, "{time} us for 16.8 MB");
    // A small L2 hides little.
    let (time, _) = us(H200, kimi(8, 8));
    assert!((30.7..34.0).contains(&time), "{time}");
}

#[test]
fn uniform_routing_of_64_tokens_lies_between_the_balanced_rows() {
    let (time, fit) = us(RTX, kimi(284, 512));
    assert!((551.0..824.0).contains(&time) && fit == Fit::Inside, "{time}");
    // More tokens on the same experts cost no less.
    assert!(us(RTX, kimi(284, 4096)).0 >= time);
    // A rank without any expert hit still launches.
    assert!(us(RTX, kimi(0, 0)).0 < us(RTX, kimi(8, 8)).0);
}

#[test]
fn eight_heads_lie_between_four_and_sixteen() {
    // Of 4096 tokens, four sequences were measured to take less than one, and one is held to that.
    let shape = |heads| Query::MlaDecode(AttentionShape { heads, batch: 1, tokens: 1, kv_rows: 1024 }, CacheType::Bf16);
    let (four, eight, sixteen) = (us(RTX, shape(4)), us(RTX, shape(8)), us(RTX, shape(16)));
    assert!(four.0 <= eight.0 && eight.0 <= sixteen.0, "{four:?} {eight:?} {sixteen:?}");
    assert_eq!((four.1, eight.1, sixteen.1), (Fit::Exact, Fit::Inside, Fit::Exact));
    // Longer contexts than any measured follow the bytes.
    let long = |rows| us(RTX, Query::MlaDecode(AttentionShape { heads: 16, batch: 1, tokens: 1, kv_rows: rows }, CacheType::Bf16));
    let (once, twice) = (long(131_072), long(262_144));
    assert!(twice.1 == Fit::Outside && (1.7..2.1).contains(&(twice.0 / once.0)), "{once:?} {twice:?}");
}

#[test]
fn tables_predict_the_points_left_out_of_them() {
    let errors = family_errors();
    assert!(errors.len() >= 100, "{}", errors.len());
    for (family, points, median, p90) in family_totals(&errors) {
        assert!(points > 500 && median <= 0.05 && p90 <= 0.15, "{family:?}: {points} points, median {median}, p90 {p90}");
    }
}

#[test]
fn every_query_is_finite_and_positive() {
    for gpu in [RTX, H200] {
        for exponent in (0..40).step_by(3) {
            let size = 1u64 << exponent;
            for element in Element::ALL {
                let experts = ExpertsShape { hidden: size, intermediate: size, local_experts: size, distinct: size, pairs: size };
                for query in [Query::Gemm(GemmShape { m: size, n: size, k: size }, element), Query::Experts(experts, element)] {
                    if let Some(e) = tables(gpu).estimate(&query) {
                        assert!(e.us.is_finite() && e.us > 0.0, "{query:?} {e:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn rates_move_only_the_part_that_depends_on_them() {
    let work = Work { query: Some(kimi(64, 64)), floor: Floor::Experts, flops: 2 * 64 * 3 * 7168 * 256, bytes: 198_180_864, kernels: 5 };
    let with = |rates: GpuRates| CostModel::new(rates, Some(tables(RTX))).compute(&work);
    let rates = catalog::reference_rates("rtx_pro_6000_server").unwrap();
    let base = with(rates.clone());
    assert_eq!((base.duration_ps, base.provenance, base.bound), (151_820_000, Provenance::Measured, Bound::Memory));
    let slow = with(GpuRates { memory_bytes_per_s: rates.memory_bytes_per_s / 2.0, ..rates.clone() });
    assert_eq!(slow.duration_ps, base.duration_ps + base.memory_ps);
    let weak = with(GpuRates { bf16_flops_per_s: rates.bf16_flops_per_s / 2.0, ..rates });
    assert_eq!(weak.duration_ps, base.duration_ps);
}

#[test]
fn a_cache_in_fp8_costs_no_more_than_one_in_bf16() {
    for name in [RTX, H200, "H100 SXM 80GB", "B200 SXM", "B300 SXM", "L40S"] {
        let tables = KernelTables::for_gpu(name, Kernels::Any).expect("tables ship for it");
        let us = |query| tables.estimate(&query).expect("covered").us;
        for (heads, batch, context) in [1, 8, 64].into_iter().flat_map(|b| [256, 16_384, 100_000].map(|c| (16, b, c))) {
            let shape = AttentionShape { heads, batch, tokens: batch, kv_rows: batch * context };
            let gqa = GqaShape { kv_heads: 1, head_dim: 128, window: 0 };
            let mla = [CacheType::Fp8, CacheType::Bf16].map(|cache| us(Query::MlaDecode(shape, cache)));
            let gqa = [CacheType::Fp8, CacheType::Bf16].map(|cache| us(Query::GqaDecode(shape, gqa, cache)));
            for [fp8, bf16] in [mla, gqa] {
                assert!(fp8 <= bf16 * 1.001, "{name}, batch {batch}, context {context}: {fp8} us over fp8, {bf16} over bf16");
            }
        }
    }
    // Whose kernels are named is held to what was measured of them: FA3 over fp8, 1040 us of 8 x 65,536.
    let shape = AttentionShape { heads: 16, batch: 8, tokens: 8, kv_rows: 8 * 65_536 };
    let named = us(H200, Query::MlaDecode(shape, CacheType::Fp8)).0;
    let any =
        KernelTables::for_gpu(H200, Kernels::Any).expect("ships").estimate(&Query::MlaDecode(shape, CacheType::Fp8)).expect("covered");
    assert!(named > 1000.0 && (90.0..160.0).contains(&any.us), "{named} {any:?}");
}

#[test]
fn few_rows_take_no_longer_than_more() {
    // vLLM's fp8 rows of B200: 19.602 us of one token, 6.4622 of two.
    let tables = KernelTables::for_gpu("B200 SXM", Kernels::Vllm).expect("tables ship for it");
    let one = tables.estimate(&Query::Gemm(GemmShape { m: 1, n: 4096, k: 2048 }, Element::Fp8)).expect("covered");
    assert!(one.us < 9.0 && one.fit == Fit::Inside, "{one:?}");
}

#[test]
fn a_prompt_in_two_parts_takes_what_it_takes_in_one() {
    for name in [RTX, H200, "B200 SXM", "A100 SXM 80GB"] {
        let tables = KernelTables::for_gpu(name, Kernels::Any).expect("tables ship for it");
        let us = |past: u64, new: u64| {
            let shape = AttentionShape { heads: 16, batch: 1, tokens: new, kv_rows: past + new };
            tables.estimate(&Query::MlaPrefill(shape, CacheType::Bf16)).expect("covered").us
        };
        for part in [2048, 4096, 8192] {
            let (whole, parts) = (us(0, 2 * part), us(0, part) + us(part, part));
            assert!((0.75..1.35).contains(&(parts / whole)), "{name}, {part}: {parts} us in two parts, {whole} in one");
            assert!(us(part, part) > us(0, part) && us(2 * part, part) > us(part, part));
        }
    }
}
