//! Max-min fair sharing: every flow gets as much as it can without taking from a flow that has less.
//!
//! A flow has a limit on each link it crosses (a read and a write may have different ones), and what a link can carry is the constraint
//! `sum(rate / limit) <= 1`; with equal limits that is the usual capacity. Shares are fixed-point with [`SHIFT`] fractional bits and round
//! so that no link is ever over its capacity.

/// Fractional bits of a share of a link.
const SHIFT: u32 = 80;
const WHOLE: u128 = 1 << SHIFT;

/// A flow to be given a rate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Demand {
    /// Directed links crossed, each with the rate this flow could reach alone there (bytes per second, at least 1). A link appears once.
    pub hops: Vec<(u32, u64)>,
    /// What the sender itself can do, bytes per second.
    pub cap: u64,
}

/// Max-min fair rates, bytes per second, of flows in the order given.
///
/// Only links that a flow crosses are looked at. A flow with no hops gets its cap.
pub fn max_min(demands: &[Demand]) -> Vec<u64> {
    // Links are renumbered densely in order of first use.
    let mut ids: Vec<u32> = demands.iter().flat_map(|demand| demand.hops.iter().map(|hop| hop.0)).collect();
    ids.sort_unstable();
    ids.dedup();
    let local = |link: u32| ids.binary_search(&link).expect("every link was collected");
    // What is left of each link, and the shares that one byte per second of each unfixed flow takes.
    let mut left = vec![WHOLE; ids.len()];
    let mut load = vec![0u128; ids.len()];
    let hops: Vec<Vec<(usize, u128)>> = demands
        .iter()
        .map(|demand| demand.hops.iter().map(|&(link, limit)| (local(link), WHOLE.div_ceil(u128::from(limit.max(1))))).collect())
        .collect();
    for &(link, share) in hops.iter().flatten() {
        load[link] += share;
    }
    let mut rates = vec![0u64; demands.len()];
    let mut open: Vec<usize> = (0..demands.len()).collect();
    while !open.is_empty() {
        // The level to which every open flow can rise: the tightest link or the smallest cap.
        let by_link = (0..ids.len()).filter(|&link| load[link] > 0).map(|link| left[link] / load[link]).min();
        let by_cap = open.iter().map(|&flow| u128::from(demands[flow].cap)).min();
        let level = by_link.into_iter().chain(by_cap).min().unwrap_or(0);
        let tight: Vec<bool> = (0..ids.len()).map(|link| load[link] > 0 && left[link] / load[link] <= level).collect();
        let before = open.len();
        let mut fixed = Vec::new();
        open.retain(|&flow| {
            let fix = u128::from(demands[flow].cap) <= level || hops[flow].iter().any(|&(link, _)| tight[link]);
            if fix {
                fixed.push(flow);
            }
            !fix
        });
        debug_assert!(open.len() < before, "each round fixes a flow");
        for flow in fixed {
            rates[flow] = u64::try_from(level).unwrap_or(u64::MAX);
            for &(link, share) in &hops[flow] {
                load[link] -= share;
                left[link] = left[link].saturating_sub(share * level);
            }
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The oracle: raise all unfixed flows together in small steps of the exact rational level, recomputed from scratch each time in
    /// floating point, over all links there are.
    fn naive(demands: &[Demand], links: u32) -> Vec<f64> {
        let mut rates = vec![0.0f64; demands.len()];
        let mut fixed = vec![false; demands.len()];
        while fixed.iter().any(|done| !done) {
            let mut step = f64::INFINITY;
            for (flow, demand) in demands.iter().enumerate() {
                if !fixed[flow] {
                    step = step.min(demand.cap as f64 - rates[flow]);
                }
            }
            for link in 0..links {
                let (mut used, mut open) = (0.0, 0.0);
                for (flow, demand) in demands.iter().enumerate() {
                    for &(_, limit) in demand.hops.iter().filter(|hop| hop.0 == link) {
                        used += rates[flow] / limit as f64;
                        if !fixed[flow] {
                            open += 1.0 / limit as f64;
                        }
                    }
                }
                if open > 0.0 {
                    step = step.min((1.0 - used).max(0.0) / open);
                }
            }
            for (flow, rate) in rates.iter_mut().enumerate() {
                if !fixed[flow] {
                    *rate += step;
                }
            }
            for flow in 0..demands.len() {
                let full = |link: u32| {
                    let used: f64 = demands
                        .iter()
                        .zip(&rates)
                        .flat_map(|(demand, rate)| demand.hops.iter().filter(|hop| hop.0 == link).map(move |hop| rate / hop.1 as f64))
                        .sum();
                    used > 1.0 - 1e-9
                };
                if rates[flow] >= demands[flow].cap as f64 * (1.0 - 1e-12) || demands[flow].hops.iter().any(|hop| full(hop.0)) {
                    fixed[flow] = true;
                }
            }
        }
        rates
    }

    const LINKS: u32 = 6;

    fn demand() -> impl Strategy<Value = Demand> {
        let hops =
            prop::collection::btree_map(0..LINKS, prop_oneof![Just(2_700_000_000u64), Just(56_000_000_000), Just(450_000_000_000)], 1..4);
        let cap = prop_oneof![Just(u64::MAX), 1_000_000_000u64..100_000_000_000];
        (hops, cap).prop_map(|(hops, cap)| Demand { hops: hops.into_iter().collect(), cap })
    }

    proptest! {
        #[test]
        fn equals_the_naive_solver(demands in prop::collection::vec(demand(), 1..12)) {
            let fast = max_min(&demands);
            let slow = naive(&demands, LINKS);
            for (a, b) in fast.iter().zip(&slow) {
                prop_assert!((*a as f64 - b).abs() <= b * 1e-6 + 2.0, "{fast:?} {slow:?}");
            }
        }

        #[test]
        fn no_link_is_over_its_capacity(demands in prop::collection::vec(demand(), 1..24)) {
            let rates = max_min(&demands);
            for link in 0..LINKS {
                // Exact: a common denominator of all limits.
                let product: u128 = [2_700u128, 56_000, 450_000].iter().product();
                let used: u128 = demands.iter().zip(&rates)
                    .flat_map(|(demand, rate)| demand.hops.iter().filter(|hop| hop.0 == link).map(move |hop| u128::from(*rate) * (product / u128::from(hop.1 / 1_000_000))))
                    .sum();
                prop_assert!(used <= product * 1_000_000);
            }
        }

        #[test]
        fn order_does_not_matter(demands in prop::collection::vec(demand(), 1..12), turn in 0usize..12) {
            let turn = turn % demands.len();
            let mut turned = demands.clone();
            turned.rotate_left(turn);
            let mut expected = max_min(&demands);
            expected.rotate_left(turn);
            prop_assert_eq!(max_min(&turned), expected);
        }

        #[test]
        fn one_more_flow_never_raises_the_least_rate(demands in prop::collection::vec(demand(), 2..12)) {
            let all = max_min(&demands);
            let fewer = max_min(&demands[1..]);
            prop_assert!(all[1..].iter().min() <= fewer.iter().min());
        }
    }

    #[test]
    fn flows_of_one_link_share_it_and_the_rest_goes_to_who_can_use_it() {
        // Shares round down, by at most one byte per second.
        let share = |demands: &[Demand]| max_min(demands).into_iter().map(|rate| rate.div_ceil(1000)).collect::<Vec<_>>();
        let on = |links: &[u32], cap| Demand { hops: links.iter().map(|&link| (link, 56_000)).collect(), cap };
        assert_eq!(share(&[on(&[0], u64::MAX), on(&[0], u64::MAX)]), [28, 28]);
        assert_eq!(share(&[on(&[0], 10_000), on(&[0], u64::MAX)]), [10, 46]);
        assert_eq!(share(&[on(&[0, 1], u64::MAX), on(&[0], u64::MAX), on(&[1], 5_000)]), [28, 28, 5]);
        assert_eq!(max_min(&[on(&[], 7)]), [7]);
        assert_eq!(max_min(&[]), [0u64; 0]);
    }
}
