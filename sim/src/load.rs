//! What the links of a machine carry during a pass.

use crate::exec::SimTrace;
use crate::machine::{LinkId, Machine};
use crate::time::Duration;
use moetwin_models::ids::Id;

/// What one direction of a link carries.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DirectionLoad {
    /// How long bytes keep it busy in a pass.
    pub busy: Duration,
    /// The same as a share of the pass.
    pub share: f64,
    /// The largest share of an exchange's own time for which its bytes keep the direction busy.
    pub peak: f64,
}

/// What a link carries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkLoad {
    /// The link.
    pub link: LinkId,
    /// From its end `a` to its end `b`.
    pub forward: DirectionLoad,
    /// The other way.
    pub backward: DirectionLoad,
}

impl LinkLoad {
    /// The direction that carries more.
    pub fn busier(&self) -> DirectionLoad {
        if self.backward.share > self.forward.share { self.backward } else { self.forward }
    }
}

/// The load of every link of the machine that `trace` was simulated on, by link; zeros where nothing passes.
pub fn link_loads(machine: &Machine, trace: &SimTrace) -> Vec<LinkLoad> {
    const MILLION: u64 = 1_000_000;
    let mut directions = vec![DirectionLoad::default(); 2 * machine.links.len()];
    for record in trace.exchanges.as_slice() {
        for &(direction, share) in record.shares.iter() {
            if let Some(load) = directions.get_mut(direction as usize) {
                load.busy += record.alone.scaled(share, MILLION);
                load.peak = load.peak.max(share as f64 / MILLION as f64);
            }
        }
    }
    let (steps, total) = (u64::from(trace.steps.max(1)), trace.total.as_ps().max(1) as f64);
    for load in &mut directions {
        load.share = load.busy.as_ps() as f64 / total;
        load.busy = load.busy.scaled(1, steps);
    }
    let load = |link: LinkId| LinkLoad { link, forward: directions[2 * link.index()], backward: directions[2 * link.index() + 1] };
    machine.links.ids().map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::samples::{CAPTURED, compute, reduce, run};
    use crate::machine;

    #[test]
    fn bytes_keep_links_busy_for_their_share_of_an_exchange() {
        let ranks =
            [vec![compute(0, 100), reduce(0, 40, 0), reduce(0, 200, 1)], vec![compute(0, 100), reduce(0, 40, 0), reduce(0, 200, 1)]];
        let machine = machine::find("8x-rtx-pro-6000-server").unwrap();
        for steps in [1, 2] {
            let mut trace = run(&ranks, &[&[0, 1]], CAPTURED, steps).unwrap();
            assert!(link_loads(&machine, &trace).iter().all(|l| l.busier() == DirectionLoad::default()));
            for (_, record) in trace.exchanges.iter_mut() {
                // Half of the time forward on link 1, a tenth backward; a direction that no link has is nobody's.
                record.shares = [(2, 500_000), (3, 100_000), (u32::MAX, 1)].into();
            }
            let loads = link_loads(&machine, &trace);
            assert_eq!(loads.len(), machine.links.len());
            assert_eq!((loads[1].forward.busy.as_ps(), loads[1].backward.busy.as_ps()), (120, 24), "(40 + 200) halved, and a tenth of it");
            assert_eq!((loads[1].busier().peak, loads[1].busier()), (0.5, loads[1].forward));
            let step = trace.total.as_ps() as f64 / f64::from(steps);
            assert!((loads[1].forward.share - 120.0 / step).abs() < 1e-12);
            assert_eq!(loads[0].busier(), DirectionLoad::default());
        }
    }
}
