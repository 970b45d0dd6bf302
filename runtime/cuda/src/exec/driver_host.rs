//! The GPUs of this host through the driver: libraries found once, kernels compiled once, one GPU opened a rank.

use super::compile::{Cubins, compile_all};
use super::driver_gpu::{DriverGpu, Handles};
use super::gpu::{AbortSignal, GpuError, Host};
use crate::cublaslt::CublasLt;
use crate::device::Driver;
use crate::library::OpenError;
use crate::nccl::Nccl;
use crate::search::Search;
use moetwin_models::RankId;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// The driver, the compiled kernels and NCCL.
pub struct DriverHost {
    search: Search,
    cubins: Cubins,
    nccl: Option<Arc<Nccl>>,
    ordinals: BTreeMap<RankId, usize>,
    handles: BTreeMap<RankId, Handles>,
    library: Option<Arc<CublasLt>>,
    start: Instant,
}

fn wrong(call: &'static str) -> impl FnOnce(crate::device::DeviceError) -> GpuError {
    move |e| GpuError::new(call, e.to_string())
}

impl DriverHost {
    /// The host of the ranks in `ordinals`, each with the driver's number of its GPU. Of `ranks` ranks in all; several need NCCL.
    pub fn open(ordinals: BTreeMap<RankId, usize>, ranks: u32) -> Result<Self, GpuError> {
        let search = Search::from_environment();
        let driver = Driver::open(&search).map_err(wrong("driver"))?;
        let count = driver.device_count().map_err(wrong("driver"))?;
        if let Some((rank, ordinal)) = ordinals.iter().find(|(_, o)| **o >= count) {
            return Err(GpuError::new("driver", format!("rank {} needs GPU {ordinal}, and the driver shows {count}", rank.0)));
        }
        let first = ordinals.values().next().copied().unwrap_or(0);
        let (major, minor) = driver.device(first).and_then(|d| d.compute_capability()).map_err(wrong("device"))?;
        // The architecture-specific target, which alone has the newest matrix instructions.
        let architecture = format!("{major}{minor}{}", if major >= 9 { "a" } else { "" });
        let cubins = compile_all(&search, &architecture)?;
        let nccl = match ranks {
            1 => None,
            _ => Some(Arc::new(Nccl::open(&search).map_err(|e| GpuError::new("NCCL", e.to_string()))?)),
        };
        let handles = ordinals.keys().map(|r| (*r, Handles::default())).collect();
        Ok(Self { search, cubins, nccl, ordinals, handles, library: None, start: Instant::now() })
    }
    /// Lets cuBLASLt compute products of many rows; why not, where it cannot be found.
    pub fn use_library(&mut self) -> Result<(), OpenError> {
        self.library = Some(Arc::new(CublasLt::open(&self.search)?));
        Ok(())
    }
}

impl Host for DriverHost {
    type Gpu = DriverGpu;
    fn open(&self, rank: RankId, abort: AbortSignal) -> Result<DriverGpu, GpuError> {
        let no_gpu = || GpuError::new("device", format!("rank {} has no GPU here", rank.0));
        let (ordinal, handles) = (self.ordinals.get(&rank).ok_or_else(no_gpu)?, self.handles.get(&rank).ok_or_else(no_gpu)?);
        let driver = Driver::open(&self.search).map_err(wrong("driver"))?;
        driver.device_count().map_err(wrong("driver"))?;
        let device = driver.device(*ordinal).map_err(wrong("device"))?;
        device.bind().map_err(wrong("device"))?;
        let mut gpu = DriverGpu::new(device, &self.cubins, self.nccl.clone(), Arc::clone(handles), abort)?;
        self.library.iter().try_for_each(|table| gpu.use_library(Arc::clone(table)))?;
        Ok(gpu)
    }
    fn unique_id(&self) -> Result<Vec<u8>, GpuError> {
        let nccl = self.nccl.as_ref().ok_or_else(|| GpuError::new("NCCL", "not loaded, and several ranks need it"))?;
        nccl.unique_id().map_err(|e| GpuError::new("NCCL", e.to_string()))
    }
    fn abort_stuck(&self, rank: RankId) {
        let Some(handles) = self.handles.get(&rank) else { return };
        let list: Vec<_> = handles.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // An abort may itself get stuck; it must not take its caller with it.
        std::thread::spawn(move || list.iter().for_each(|h| h.abort()));
    }
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}
