//! What fits to published tables gave, one set of figures a machine (like machines share one). Arrays as [`Ring::new`] and
//! [`super::figures::Collectives`] take them: nanoseconds, 10^9 bytes per second, thousandths.

use super::figures::{Fitted, Ring};

/// 8x H200 SXM and 8x H100 SXM, NCCL 2.29.2.
pub(super) const HOPPER: Fitted = Fitted {
    kernel: 5000,
    loops: 0,
    nvlink: Some(Ring::new([600, 572, 2000], [1400, 11], [2420, 550, 2000, 1], 909)),
    pcie: None,
    host: None,
    nvls: Some([22_916, 178, 275, 46_000, 13_000, 265]),
    message: Some([1500, 5500, 130, 240, 650]),
    custom: Some([900, 120, 734, 2500]),
    launch: Some([3000, 30_090, 33_000]),
};

/// 8x H800 SXM, NCCL 2.12, Ring and Simple.
pub(super) const H800: Fitted = Fitted {
    kernel: 5000,
    loops: 25_758,
    nvlink: Some(Ring::new([500, 520, 2000], [1400, 20], [583, 510, 2000, 1], 91)),
    pcie: None,
    host: None,
    nvls: None,
    message: None,
    custom: None,
    launch: None,
};

/// 8x A100 SXM, NCCL 2.27.3.
pub(super) const A100: Fitted = Fitted {
    kernel: 8164,
    loops: 0,
    nvlink: Some(Ring::new([952, 1323, 2000], [1878, 5], [4800, 500, 2000, 1], 800)),
    pcie: None,
    host: None,
    nvls: None,
    message: Some([4284, 7477, 100, 196, 662]),
    custom: Some([3465, 273, 800, 2500]),
    launch: Some([4000, 44_000, 48_000]),
};

/// 8x B200 SXM, 8x B300 SXM and 4x GB200, NCCL 2.29.2.
pub(super) const BLACKWELL: Fitted = Fitted {
    kernel: 7650,
    loops: 0,
    nvlink: Some(Ring::new([1176, 500, 2000], [1800, 6], [9091, 266, 2000, 2], 754)),
    pcie: None,
    host: None,
    nvls: Some([15_000, 400, 480, 30_000, 14_500, 319]),
    message: Some([2545, 7954, 100, 350, 636]),
    custom: Some([5400, 120, 700, 2500]),
    launch: Some([3000, 20_500, 33_000]),
};

/// 8x V100 SXM2, NCCL 2.12, Ring and Simple.
pub(super) const V100: Fitted = Fitted {
    kernel: 8164,
    loops: 19_542,
    nvlink: Some(Ring::new([800, 1000, 2000], [2000, 10], [2021, 2265, 2000, 1], 197)),
    pcie: None,
    host: None,
    nvls: None,
    message: None,
    custom: None,
    launch: None,
};

/// 8x RTX PRO 6000 Server, NCCL 2.29.2.
pub(super) const SERVER: Fitted = Fitted {
    kernel: 4600,
    loops: 0,
    nvlink: None,
    pcie: Some(Ring::new([600, 654, 2000], [2000, 4], [9143, 0, 60, 1], 578)),
    host: Some(Ring::new([655, 1358, 1747], [3000, 3], [3111, 0, 27, 1], 429)),
    nvls: None,
    message: Some([1650, 4200, 462, 26, 1127]),
    custom: Some([2000, 200, 809, 3000]),
    launch: Some([2500, 18_600, 28_500]),
};

/// 8x RTX PRO 6000 on dual EPYC 9575F.
pub(super) const DUAL_TURIN: Fitted = Fitted {
    kernel: 4600,
    loops: 0,
    nvlink: None,
    pcie: Some(Ring::new([66, 1100, 2000], [1500, 4], [1300, 200, 43, 1], 200)),
    host: None,
    nvls: None,
    message: None,
    custom: None,
    launch: None,
};

/// 8x RTX PRO 6000 Max-Q behind three switches.
pub(super) const THREE_SWITCH: Fitted = Fitted {
    kernel: 7344,
    loops: 0,
    nvlink: None,
    pcie: Some(Ring::new([500, 600, 2000], [1500, 4], [1300, 200, 60, 1], 1782)),
    host: None,
    nvls: None,
    message: None,
    custom: Some([2310, 214, 1080, 3000]),
    launch: None,
};

/// 8x RTX PRO 6000 Server below two c-payne switches of a Threadripper PRO.
pub(super) const WRX90: Fitted = Fitted {
    kernel: 4712,
    loops: 0,
    nvlink: None,
    pcie: Some(Ring::new([208, 600, 2000], [1500, 4], [827, 157, 60, 1], 560)),
    host: None,
    nvls: None,
    message: None,
    custom: Some([4167, 872, 750, 3000]),
    launch: None,
};

/// 8x RTX 5090 on dual EPYC 9575F, NCCL 2.29.
pub(super) const RTX_5090: Fitted = Fitted {
    kernel: 340,
    loops: 0,
    nvlink: None,
    pcie: Some(Ring::new([250, 600, 2000], [1500, 4], [1217, 34, 60, 1], 200)),
    host: None,
    nvls: None,
    message: None,
    custom: None,
    launch: None,
};

/// 8x L40S, NCCL 2.27.3; messages as those of the RTX PRO 6000 Server node.
pub(super) const L40S: Fitted = Fitted {
    kernel: 4590,
    loops: 0,
    nvlink: None,
    pcie: Some(Ring::new([700, 756, 2000], [2500, 3], [7840, 500, 60, 1], 38)),
    host: Some(Ring::new([556, 1500, 1348], [4000, 2], [3500, 1000, 17, 1], 221)),
    nvls: None,
    message: Some([1650, 4200, 462, 20, 1000]),
    custom: Some([2520, 200, 923, 4000]),
    launch: Some([4000, 40_000, 104_719]),
};

/// 8x RTX 4090 on dual EPYC 7542, with peer access and without.
pub(super) const RTX_4090_EPYC: Fitted = Fitted {
    kernel: 6600,
    loops: 0,
    nvlink: None,
    pcie: Some(Ring::new([743, 1202, 2000], [2500, 3], [4284, 3080, 60, 1], 141)),
    host: Some(Ring::new([817, 1836, 2000], [4000, 2], [3850, 1299, 17, 1], 1527)),
    nvls: None,
    message: None,
    custom: None,
    launch: None,
};

/// 8x RTX 4090 on an HPC host, NCCL 2.12, Ring and Simple.
pub(super) const RTX_4090_HPC: Fitted = Fitted {
    kernel: 6600,
    loops: 1404,
    nvlink: None,
    pcie: None,
    host: Some(Ring::new([1000, 1500, 2000], [4000, 2], [3030, 1270, 17, 1], 550)),
    nvls: None,
    message: None,
    custom: None,
    launch: None,
};

/// 8x RTX 4090 of a cloud notebook, NCCL 2.12, Ring and Simple.
pub(super) const RTX_4090_CLOUD: Fitted = Fitted {
    kernel: 6600,
    loops: 6600,
    nvlink: None,
    pcie: None,
    host: Some(Ring::new([1000, 1500, 2000], [4000, 2], [2450, 91, 17, 1], 25)),
    nvls: None,
    message: None,
    custom: None,
    launch: None,
};

/// 2x RTX 4090, NCCL 2.12, Ring and Simple.
pub(super) const RTX_4090_PAIR: Fitted = Fitted {
    kernel: 6600,
    loops: 4824,
    nvlink: None,
    pcie: None,
    host: Some(Ring::new([1000, 1500, 2000], [4000, 2], [2451, 1021, 17, 1], 128)),
    nvls: None,
    message: None,
    custom: None,
    launch: None,
};

/// 8x A100 PCIe 40 GB, NCCL 2.12, Ring and Simple.
pub(super) const A100_PCIE: Fitted = Fitted {
    kernel: 8164,
    loops: 24_229,
    nvlink: None,
    pcie: None,
    host: Some(Ring::new([1000, 1500, 2000], [4000, 2], [7350, 849, 12, 1], 214)),
    nvls: None,
    message: None,
    custom: None,
    launch: None,
};
