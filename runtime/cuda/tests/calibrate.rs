//! Figures of a machine, measured on the recording fake, whose times are known.

use moetwin_cuda::exec::calibrate::{exchanges, floors};
use moetwin_cuda::exec::fake::FakeHost;
use moetwin_cuda::exec::pace::{COPY_PS, EXCHANGE_PS, STAMP_PS};
use moetwin_models::RankId;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(10);

#[test]
fn floors_are_those_of_the_fake() {
    let host = FakeHost::default();
    let found = floors(&host, RankId(0), DEADLINE).unwrap();
    assert_eq!(host.wrong(), [""; 0]);
    assert_eq!(host.open_gpus(), 0);
    // Kernels that hold for no time take none on the fake; its copies take the same whatever they copy.
    assert!(found.graph_node_ps < 1_000, "{found:?}");
    let rate = 2.0 * f64::from(1 << 30) / ((COPY_PS + STAMP_PS) as f64 / 1e12);
    assert!((found.copy_bytes_per_s / rate - 1.0).abs() < 1e-9, "{found:?} {rate}");
}

#[test]
fn exchanges_are_measured_on_every_rank_and_lateness_is_told_from_transfer() {
    let host = FakeHost::default();
    let late = [Duration::ZERO, Duration::from_micros(50)];
    let found = exchanges(&host, 4, &[8 << 10, 4 << 20], &late, DEADLINE).unwrap();
    assert_eq!(host.wrong(), [""; 0]);
    assert_eq!(host.open_gpus(), 0);
    assert_eq!((found.ranks, found.sizes.len(), found.skew.len()), (4, 2, 2));
    for size in &found.sizes {
        assert!(size.graph_ps >= EXCHANGE_PS && size.loop_ps > size.graph_ps, "{size:?}");
    }
    assert_eq!(found.skew[1].late_ps, 50_000_000);
    assert!(found.skew.iter().all(|s| s.transfer_ps == EXCHANGE_PS + STAMP_PS), "{found:?}");
}
