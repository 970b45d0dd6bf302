//! One op at a time on a GPU, for tests and measurements: operands in, launches as in a program, results out.

use super::compile::{Cubins, compile_all};
use super::driver_gpu::{DriverGpu, Handles};
use super::gpu::{AbortSignal, Address, Captured, Gpu, GpuError, WORKSPACE_BYTES};
use super::parts::{from_bytes, to_bytes};
use super::rank::PartOfResult;
use super::weights::{WeightLoad, read_weight};
use crate::cublaslt::CublasLt;
use crate::device::{Device, Driver};
use crate::search::Search;
use moetwin_kernels::launch::storage::{Packed, Storage, storage_of, to_tiles};
use moetwin_kernels::launch::{Arg, Launches, Table, Tuning, carried_by, element_of, launches_with};
use moetwin_kernels::reference::{Array, CacheSlot};
use moetwin_models::{Graph, NodeId, RankId, TensorId, TensorKind};
use moetwin_runtime::BufferId;
use moetwin_runtime::weights::WeightSource;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The only rank.
const RANK: RankId = RankId(0);
/// What results and scratch memory hold before a run: NaN, or -1.
const POISON: u8 = 0xff;
/// Longest wait for an op.
const DEADLINE: Duration = Duration::from_secs(60);

/// An operand of an op.
pub enum Operand {
    /// Values, rounded to the element type of the tensor.
    Values(Array<f32>),
    /// A packed weight.
    Packed(Packed),
}

/// An open GPU with kernels.
pub struct Trial {
    gpu: DriverGpu,
    architecture: String,
    library: Option<Arc<CublasLt>>,
    workspace: Option<Address>,
    products: u64,
    portable: bool,
    tuning: Tuning,
}

/// An op whose operands are on the device.
pub struct Placed {
    inputs: Vec<Address>,
    outputs: Vec<Address>,
    plan: Launches,
    scratch: Address,
    sequences: Address,
    tables: Vec<(Table, Address)>,
}

fn wrong(call: &str) -> impl Fn(String) -> GpuError + '_ {
    move |e| GpuError::new(call, e)
}

impl Trial {
    /// Opens the driver's first GPU with the kernels as they are.
    pub fn open(search: &Search) -> Result<Self, GpuError> {
        let (_, architecture) = first_gpu(search)?;
        let cubins = compile_all(search, &architecture)?;
        Self::with(search, &cubins)
    }
    /// The same with other kernels.
    pub fn with(search: &Search, cubins: &Cubins) -> Result<Self, GpuError> {
        let (device, architecture) = first_gpu(search)?;
        device.bind().map_err(|e| wrong("device")(e.to_string()))?;
        Ok(Self {
            gpu: DriverGpu::new(device, cubins, None, Handles::default(), AbortSignal::default())?,
            architecture,
            library: None,
            workspace: None,
            products: 0,
            portable: false,
            tuning: Tuning::default(),
        })
    }
    /// The architecture that kernels are compiled for, `90a` for Hopper.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Lets cuBLASLt compute the products that are offered to it from now on.
    pub fn use_library(&mut self, search: &Search) -> Result<(), GpuError> {
        let table = Arc::new(CublasLt::open(search).map_err(|e| wrong("cuBLASLt")(e.to_string()))?);
        self.gpu.use_library(Arc::clone(&table))?;
        self.library = Some(table);
        Ok(())
    }
    /// Keeps to the kernels that every architecture has from now on.
    pub fn keep_to_portable(&mut self, portable: bool) {
        self.portable = portable;
    }
    /// Launches by these choices from now on.
    pub fn set_tuning(&mut self, tuning: Tuning) {
        self.tuning = tuning;
    }
    /// Whether the GPU has kernels of Hopper's own.
    pub fn is_hopper(&self) -> bool {
        self.gpu.is_hopper()
    }
    /// Products that the library has computed.
    pub fn products(&self) -> u64 {
        self.products
    }

    /// Frees what was placed; nothing placed before may be used again.
    pub fn free_all(&mut self) -> Result<(), GpuError> {
        self.gpu.synchronize(DEADLINE)?;
        self.gpu.free_all();
        self.workspace = None;
        Ok(())
    }

    /// Puts operands, sequences and poisoned results of an op on the device. Operands of a node that it carries follow its own.
    pub fn place(&mut self, graph: &Graph, node: NodeId, operands: &[Operand], sequences: &[CacheSlot]) -> Result<Placed, GpuError> {
        let mut inputs = Vec::new();
        let carried = carried_by(graph, node, RANK).map(|n| &graph.nodes[n].inputs).into_iter().flatten();
        for (operand, &tensor) in operands.iter().zip(graph.nodes[node].inputs.iter().chain(carried)) {
            let bytes = match operand {
                Operand::Values(array) => to_bytes(array, element_of(graph, tensor)),
                Operand::Packed(packed) => {
                    let storage = storage_of(graph, tensor, RANK).map_err(|e| wrong("packing")(e.to_string()))?;
                    if matches!(storage, Storage::Rows(_)) {
                        return Err(GpuError::new("packing", "the kernels expect plain rows"));
                    }
                    to_tiles(storage, packed)
                }
            };
            let address = self.gpu.allocate(bytes.len() as u64)?;
            self.gpu.write(address, &bytes)?;
            inputs.push(address);
        }
        self.place_at(graph, node, inputs, sequences)
    }

    /// The same with weights of a source, and other operands by their values.
    pub fn place_from(
        &mut self,
        graph: &Graph,
        node: NodeId,
        source: &dyn WeightSource,
        mut values: impl FnMut(TensorId) -> Array<f32>,
        sequences: &[CacheSlot],
    ) -> Result<Placed, GpuError> {
        let mut inputs = Vec::new();
        for &tensor in &graph.nodes[node].inputs {
            inputs.push(if matches!(graph.tensors[tensor].kind, TensorKind::Weight(_)) {
                let load = read_weight(source, graph, tensor, RANK).map_err(|e| wrong("weights")(e.to_string()))?;
                self.draw(&load)?
            } else {
                let bytes = to_bytes(&values(tensor), element_of(graph, tensor));
                let address = self.gpu.allocate(bytes.len() as u64)?;
                self.gpu.write(address, &bytes)?;
                address
            });
        }
        self.place_at(graph, node, inputs, sequences)
    }

    fn draw(&mut self, load: &WeightLoad) -> Result<Address, GpuError> {
        let (to, tables) = (self.gpu.allocate(load.bytes())?, self.gpu.allocate(load.table_bytes())?);
        load.place(&mut self.gpu, to, tables)?;
        Ok(to)
    }

    /// A weight of a source as the device holds it.
    pub fn weight_bytes(&mut self, source: &dyn WeightSource, graph: &Graph, tensor: TensorId) -> Result<Vec<u8>, GpuError> {
        let load = read_weight(source, graph, tensor, RANK).map_err(|e| wrong("weights")(e.to_string()))?;
        let address = self.draw(&load)?;
        self.gpu.synchronize(DEADLINE)?;
        let mut bytes = vec![0; load.bytes() as usize];
        self.gpu.read(address, &mut bytes)?;
        Ok(bytes)
    }

    fn place_at(&mut self, graph: &Graph, node: NodeId, inputs: Vec<Address>, sequences: &[CacheSlot]) -> Result<Placed, GpuError> {
        let tuning = self.tuning.clone().on_hopper(self.gpu.is_hopper() && !self.portable);
        let plan = launches_with(graph, node, RANK, &tuning).map_err(|e| wrong("launch")(e.to_string()))?;
        for launch in &plan.launches {
            if let Some(product) = &launch.product
                && self.gpu.plan_product(product)?
                && self.workspace.is_none()
            {
                self.workspace = Some(self.gpu.allocate(WORKSPACE_BYTES)?);
            }
        }
        let mut outputs = Vec::new();
        for &tensor in &graph.nodes[node].outputs {
            let storage = graph.storage(tensor);
            let shared = graph.nodes[node].inputs.iter().position(|t| *t == storage);
            outputs.push(match shared {
                Some(i) => inputs[i],
                None => {
                    let bytes = output_bytes(graph, tensor)?;
                    let address = self.gpu.allocate(bytes)?;
                    self.gpu.fill(0, address, POISON, bytes)?;
                    address
                }
            });
        }
        let scratch = self.gpu.allocate(plan.scratch_bytes)?;
        self.gpu.fill(0, scratch, POISON, plan.scratch_bytes)?;
        let mut row = 0;
        let mut rows = Vec::new();
        for s in sequences {
            rows.extend([row, s.sequence.new as i32, s.sequence.past as i32, s.cache_start as i32]);
            row += s.sequence.new as i32;
        }
        let address = self.gpu.allocate(4 * rows.len() as u64)?;
        self.gpu.write(address, &rows.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())?;
        let mut placed = Placed { inputs, outputs, plan, scratch, sequences: address, tables: Vec::new() };
        for arg in placed.plan.launches.iter().flat_map(|l| &l.args) {
            if let Arg::Table(table) = arg {
                let bytes: Vec<u8> = match table {
                    Table::F64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
                    Table::I32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
                };
                let at = self.gpu.allocate(bytes.len() as u64)?;
                self.gpu.write(at, &bytes)?;
                placed.tables.push((table.clone(), at));
            }
        }
        Ok(placed)
    }

    /// Issues the op's launches.
    pub fn issue(&mut self, placed: &Placed) -> Result<(), GpuError> {
        for launch in &placed.plan.launches {
            let cells: Vec<u64> = launch.args.iter().map(|a| placed.cell(a)).collect();
            if let (Some(product), Some(workspace), &[x, w, bias, y, ..]) = (&launch.product, self.workspace, cells.as_slice())
                && self.gpu.multiply(0, product, [x, w, bias, y], workspace)?
            {
                self.products += 1;
                continue;
            }
            self.gpu.launch(0, launch, &cells)?;
        }
        Ok(())
    }

    /// The results after the device is idle.
    pub fn results(&mut self, graph: &Graph, node: NodeId, placed: &Placed, sizes: &[Vec<usize>]) -> Result<Vec<Array<f32>>, GpuError> {
        self.gpu.synchronize(DEADLINE)?;
        let mut arrays = Vec::new();
        for ((&tensor, &address), sizes) in graph.nodes[node].outputs.iter().zip(&placed.outputs).zip(sizes) {
            let element = element_of(graph, graph.storage(tensor));
            let mut bytes = vec![0; sizes.iter().product::<usize>() * element.bytes() as usize];
            self.gpu.read(address, &mut bytes)?;
            arrays.push(from_bytes(PartOfResult { buffer: BufferId(0), sizes: sizes.clone(), element, bytes }));
        }
        Ok(arrays)
    }

    /// Captures the ops of a list, one after the other.
    pub fn capture(&mut self, list: &[&Placed]) -> Result<Captured, GpuError> {
        for placed in list {
            self.issue(placed)?;
        }
        self.gpu.synchronize(DEADLINE)?;
        self.gpu.begin_capture()?;
        for placed in list {
            self.issue(placed)?;
        }
        self.gpu.end_capture()
    }

    /// Time of one replay.
    pub fn time(&mut self, graph: Captured) -> Result<Duration, GpuError> {
        self.gpu.synchronize(DEADLINE)?;
        let begin = Instant::now();
        self.gpu.replay(graph)?;
        self.gpu.synchronize(DEADLINE)?;
        Ok(begin.elapsed())
    }
}

impl Placed {
    /// Lets `parts` warps share a tile in every kernel that may choose; false where none may.
    pub fn set_parts(&mut self, parts: u32) -> bool {
        let mut changed = false;
        for launch in &mut self.plan.launches {
            // A split over a cluster is undone, to see what it brings.
            let unsplit = match launch.kernel {
                "linear_mma_bf16_1_split" => Some(("linear_mma_bf16_1", 4)),
                "linear_mma_bf16_2_split" => Some(("linear_mma_bf16_2", 4)),
                "linear_mma_bf16_2_pair" => Some(("linear_mma_bf16_2", 2)),
                _ => None,
            };
            if let Some((kernel, blocks)) = unsplit {
                launch.kernel = kernel;
                launch.grid.0 /= blocks;
            }
            // Where `parts` stands among the arguments, from the end (SHAPE_PARAMS in shape.cuh, experts.cuh).
            let from_end = match launch.kernel {
                k if k.ends_with("_split") || k.contains("_single") || k.contains("_staged_") => continue,
                k if k.starts_with("linear_mma_bf16") => 4,
                k if k.starts_with("experts_gate_up_") => 4,
                k if k.starts_with("experts_down_") => 1,
                _ => continue,
            };
            let at = launch.args.len() - from_end;
            let Arg::I32(old) = launch.args[at] else { continue };
            let warps = launch.block / 32;
            let tiles = launch.grid.0 * (warps / old as u32);
            launch.grid.0 = tiles.div_ceil(warps / parts);
            launch.args[at] = Arg::I32(parts as i32);
            changed = true;
        }
        changed
    }
    fn cell(&self, arg: &Arg) -> u64 {
        match arg {
            Arg::Input(i) => self.inputs[*i],
            Arg::InputAt { index, offset } => self.inputs[*index] + offset,
            Arg::Output(i) => self.outputs[*i],
            Arg::Scratch { offset } => self.scratch + offset,
            Arg::Table(table) => self.tables.iter().find(|(t, _)| t == table).map_or(0, |(_, a)| *a),
            Arg::Sequences => self.sequences,
            // No op of a single rank has anything to report.
            Arg::Fault | Arg::Null => 0,
            Arg::I32(v) => u64::from(*v as u32),
            Arg::U64(v) => *v,
            Arg::F32(v) => u64::from(v.to_bits()),
        }
    }
    /// Kernels of the op, in order.
    pub fn kernels(&self) -> Vec<&'static str> {
        self.plan.launches.iter().map(|l| l.kernel).collect()
    }
}

fn output_bytes(graph: &Graph, tensor: TensorId) -> Result<u64, GpuError> {
    let sizes = graph.local_sizes(tensor, RANK).map_err(|e| wrong("sizes")(e.to_string()))?;
    Ok(sizes.iter().product::<u64>() * element_of(graph, tensor).bytes())
}

/// The driver's first GPU and the architecture-specific target for it.
pub(super) fn first_gpu(search: &Search) -> Result<(Device, String), GpuError> {
    let driver = Driver::open(search).map_err(|e| wrong("driver")(e.to_string()))?;
    driver.device_count().map_err(|e| wrong("driver")(e.to_string()))?;
    let device = driver.device(0).map_err(|e| wrong("device")(e.to_string()))?;
    let (major, minor) = device.compute_capability().map_err(|e| wrong("device")(e.to_string()))?;
    Ok((device, format!("{major}{minor}{}", if major >= 9 { "a" } else { "" })))
}
