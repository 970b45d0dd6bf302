use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn uniform() -> SampledRouting {
    SampledRouting::new(Distribution::Uniform, 1)
}

fn kimi(tokens: u64, parts: u32) -> RoutingQuery<'static> {
    RoutingQuery { layer: 1, tokens, topk: 8, experts: 384, groups: 1, topk_groups: 1, parts, placement: None }
}

/// Simulated elsewhere: 384 experts, top-8, uniform, 8 ranks; expected most distinct experts of a rank over their mean.
#[test]
fn the_busiest_of_eight_ranks_is_as_busy_as_published() {
    for (tokens, published) in [(1, 2.58), (2, 2.07), (4, 1.73), (8, 1.48), (16, 1.32), (64, 1.11)] {
        let s = uniform().statistics(&kimi(tokens, 8));
        let ratio = s.busiest_distinct / s.mean_distinct;
        assert!((ratio / published - 1.0).abs() < 0.02, "{tokens} tokens: {ratio:.3}, published {published}");
    }
}

/// `E (1 - (1 - k / E)^T)` distinct experts in expectation.
#[test]
fn distinct_experts_are_as_many_as_expected() {
    for tokens in [1u64, 2, 16, 64, 500] {
        let expected = 384.0 * (1.0 - (1.0 - 8.0 / 384.0f64).powi(tokens as i32));
        let got = uniform().statistics(&kimi(tokens, 1)).mean_distinct;
        assert!((got / expected - 1.0).abs() < 0.01, "{tokens} tokens: {got:.2}, expected {expected:.2}");
    }
}

#[test]
fn layers_together_are_close_to_the_expectation() {
    let (routing, query) = (uniform(), kimi(1, 8));
    let busiest = |layer| (0..8).map(|r| routing.load(&RoutingQuery { layer, ..query }, r).distinct).max().unwrap() as f64;
    let mean = (1..61).map(busiest).sum::<f64>() / 60.0;
    assert!((mean / routing.statistics(&query).busiest_distinct - 1.0).abs() < 0.03, "{mean}");
    assert!((1..61).any(|l| busiest(l) != busiest(l + 1)), "layers differ");
}

#[test]
fn one_token_of_grouped_routing_reaches_four_ranks_at_most() {
    // DeepSeek-V3: 8 groups of 32, a token chooses among 4 of them; with 8 ranks a group is a rank.
    let query = RoutingQuery { layer: 3, tokens: 1, topk: 8, experts: 256, groups: 8, topk_groups: 4, parts: 8, placement: None };
    let routing = uniform();
    let reached = |q: &RoutingQuery<'_>| -> Vec<u64> {
        (0..200u16).map(|layer| (0..8).map(|r| routing.load(&RoutingQuery { layer, ..*q }, r).rows).sum()).collect()
    };
    assert!(reached(&query).iter().all(|r| *r <= 4));
    assert!(reached(&RoutingQuery { groups: 1, topk_groups: 1, ..query }).iter().any(|r| *r > 4));
}

#[test]
fn skew_makes_fewer_experts_and_a_busier_rank() {
    let query = kimi(64, 8);
    let of = |exponent| SampledRouting::new(Distribution::Zipf { exponent }, 1).statistics(&query);
    let (flat, skewed, extreme) = (of(0.0), of(1.2), of(10.0));
    assert!((flat.mean_distinct / uniform().statistics(&query).mean_distinct - 1.0).abs() < 0.01);
    assert!(skewed.mean_distinct < 0.8 * flat.mean_distinct, "{skewed:?} {flat:?}");
    assert!(skewed.busiest_pairs > 1.5 * flat.busiest_pairs, "{skewed:?} {flat:?}");
    assert!(extreme.mean_distinct * 8.0 < 16.0, "nearly every token takes the same eight: {extreme:?}");
}

#[test]
fn a_histogram_speaks_of_its_layers_only() {
    let counts = |hot: usize| (0..8).map(|e| if e == hot { 1_000_000 } else { 1 }).collect::<Vec<u64>>();
    let histogram = RoutingHistogram { schema: 1, layers: BTreeMap::from([(1, counts(0)), (2, counts(7))]) };
    let distribution = Distribution::Histogram(histogram.clone());
    assert_eq!(distribution.check(&[(1, 8), (2, 8)]), Ok(()));
    assert_eq!(distribution.check(&[(3, 8)]), Err(RoutingError::MissingLayer { layer: 3 }));
    assert_eq!(distribution.check(&[(1, 9)]), Err(RoutingError::Experts { layer: 1, got: 8, expected: 9 }));
    let empty = RoutingHistogram { schema: 1, layers: BTreeMap::from([(1, vec![0; 8])]) };
    assert_eq!(Distribution::Histogram(empty).check(&[(1, 8)]), Err(RoutingError::Empty { layer: 1 }));
    let newer = RoutingHistogram { schema: 2, ..histogram };
    assert_eq!(Distribution::Histogram(newer).check(&[]), Err(RoutingError::Schema { schema: 2 }));
    assert!(Distribution::Zipf { exponent: f64::NAN }.check(&[]).is_err());

    let routing = SampledRouting::new(distribution, 5);
    let query = RoutingQuery { layer: 1, tokens: 100, topk: 1, experts: 8, groups: 1, topk_groups: 1, parts: 2, placement: None };
    assert!(routing.load(&query, 0).pairs > 95);
    assert!(routing.load(&RoutingQuery { layer: 2, ..query }, 1).pairs > 95);
}

/// Weights 2, 1, 1: the first is drawn with 1/2, and with 2/3 after another one, so two draws hold it with 5/6.
#[test]
fn draws_are_not_put_back() {
    let histogram = RoutingHistogram { schema: 1, layers: BTreeMap::from([(0, vec![1, 2, 1])]) };
    let routing = SampledRouting::new(Distribution::Histogram(histogram), 1);
    let query = RoutingQuery { layer: 0, tokens: 8000, topk: 2, experts: 3, groups: 1, topk_groups: 1, parts: 3, placement: None };
    let share = |part| routing.load(&query, part).pairs as f64 / 8000.0;
    assert!((share(1) - 5.0 / 6.0).abs() < 0.015, "{}", share(1));
    assert!((share(0) - 7.0 / 12.0).abs() < 0.02, "{}", share(0));
    assert_eq!(share(0) + share(1) + share(2), 2.0);
}

#[test]
fn replicas_of_a_hot_expert_share_its_tokens() {
    // Every token takes expert 0, whose two slots are on different ranks.
    let histogram = RoutingHistogram { schema: 1, layers: BTreeMap::from([(0, vec![1, 0, 0, 0])]) };
    let routing = SampledRouting::new(Distribution::Histogram(histogram), 1);
    let placement = ExpertPlacement { physical_to_logical: vec![0, 1, 2, 0, 3, 1] };
    let query =
        RoutingQuery { layer: 0, tokens: 10, topk: 1, experts: 4, groups: 1, topk_groups: 1, parts: 2, placement: Some(&placement) };
    let each = Load { distinct: 1, pairs: 5, rows: 5 };
    assert_eq!([routing.load(&query, 0), routing.load(&query, 1)], [each, each]);
}

#[test]
fn a_long_prompt_is_scaled_and_keeps_its_sum() {
    let routing = uniform();
    let query = kimi(1_000_003, 8);
    let loads: Vec<Load> = (0..8).map(|r| routing.load(&query, r)).collect();
    assert_eq!(loads.iter().map(|l| l.pairs).sum::<u64>(), 8 * 1_000_003);
    assert!(loads.iter().all(|l| l.distinct == 48 && l.rows <= 1_000_003 && l.pairs >= l.rows));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn loads_are_possible_and_do_not_depend_on_what_was_asked_before(
        (seed, layer, tokens, topk) in (any::<u64>(), 0u16..70, 0u64..200, 0u32..9),
        (groups, size, topk_groups, parts) in (1u32..5, 1u32..9, 1u32..5, 1u32..5),
        (kind, redundant) in (0usize..3, any::<bool>()),
    ) {
        let experts = groups * size;
        let counts = (0..experts).map(|e| u64::from(e % 3)).chain([1]).take(experts as usize).collect();
        let distribution = [
            Distribution::Uniform,
            Distribution::Zipf { exponent: 1.1 },
            Distribution::Histogram(RoutingHistogram { schema: 1, layers: BTreeMap::from([(layer, counts)]) }),
        ][kind].clone();
        let mut placed: Vec<u32> = (0..experts).rev().collect();
        placed.extend(redundant.then_some(0));
        placed.resize(placed.len().next_multiple_of(parts as usize), 0);
        let placement = ExpertPlacement { physical_to_logical: placed };
        let slots = placement.physical_to_logical.len() as u64;
        let query = RoutingQuery { layer, tokens, topk, experts, groups, topk_groups: topk_groups.min(groups), parts, placement: Some(&placement) };
        let routing = SampledRouting::new(distribution.clone(), seed);
        let loads: Vec<Load> = (0..parts).map(|r| routing.load(&query, r)).collect();
        let reachable = u64::from((query.topk_groups * size).min(topk.min(experts)));
        prop_assert_eq!(loads.iter().map(|l| l.pairs).sum::<u64>(), tokens * reachable);
        for l in &loads {
            prop_assert!(l.distinct <= (slots / u64::from(parts)).min(l.pairs), "{:?}", l);
            prop_assert!(l.rows <= tokens.min(l.pairs) && (l.rows > 0) == (l.pairs > 0), "{:?}", l);
        }
        let other = SampledRouting::new(distribution, seed);
        other.load(&RoutingQuery { tokens: tokens + 1, ..query }, 0);
        prop_assert_eq!((0..parts).map(|r| other.load(&query, r)).collect::<Vec<_>>(), loads);
    }
}

#[test]
fn the_same_experts_of_every_token_are_as_many_as_one_token_takes() {
    let routing = SampledRouting::new(Distribution::Same, 4);
    for tokens in [1, 5, 64] {
        let loads: Vec<Load> = (0..8).map(|rank| routing.load(&kimi(tokens, 8), rank)).collect();
        assert_eq!((loads.iter().map(|l| l.distinct).sum::<u64>(), loads.iter().map(|l| l.pairs).sum::<u64>()), (8, 8 * tokens));
    }
    let of = |layer| (0..8).map(|rank| routing.load(&RoutingQuery { layer, ..kimi(64, 8) }, rank).distinct).collect::<Vec<_>>();
    assert!((2..40).any(|layer| of(layer) != of(1)), "layers differ");
}

#[test]
fn as_many_experts_are_likely_as_a_token_takes() {
    let distributions =
        [Distribution::Uniform, Distribution::Same, Distribution::Zipf { exponent: 0.0 }, Distribution::Zipf { exponent: 2.0 }];
    for distribution in distributions {
        let likely = distribution.inclusion(1, 384, 8).unwrap();
        assert!((likely.iter().sum::<f64>() - 8.0).abs() < 1e-9, "{distribution:?}");
        assert!(likely.windows(2).all(|w| w[0] >= w[1]) && likely[0] <= 1.0, "{distribution:?}");
    }
    let one_for_all = Distribution::Zipf { exponent: 1.0 }.inclusion(1, 4, 8).unwrap();
    assert_eq!(one_for_all, [1.0; 4]);
}
