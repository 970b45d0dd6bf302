//! `moetwin machine detect`.

use super::import::{answer, read_all, wrong};
use super::known::KnownArgs;
use super::{smi, sysfs};
use crate::error::{Failure, InputError};
use crate::output::NewFile;
use clap::Args;
use moetwin::cuda::{Probe, Search, probe};
use moetwin::sim::topology::{self, gpu_by_words};
use std::path::{Path, PathBuf};

pub(super) const AFTER_HELP: &str = "\
Examples:
  moetwin machine detect
  moetwin machine detect topo.txt --out box.json

Read are the PCI devices in sysfs (class, link rate and width, NUMA node, bridges, and, for root, access control) and what the CUDA driver
shows; NVLinks, of which sysfs has none, are asked of `nvidia-smi topo -m` unless a FILE brings its output. Without a GPU the exit code is 3.";

const SYS: &str = "/sys";

/// Arguments of `moetwin machine detect`.
#[derive(Args)]
pub(crate) struct DetectArgs {
    /// Files that refine what is found, as for `machine import`
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Where sysfs is: a copy of another machine's serves too
    #[arg(long, value_name = "DIR", default_value = SYS)]
    sys: PathBuf,
    #[command(flatten)]
    known: KnownArgs,
    /// Write the machine file here
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print the machine file instead of text
    #[arg(long)]
    json: bool,
}

/// Looks, and answers.
pub(super) fn run(args: &DetectArgs) -> Result<(), Failure> {
    let mut options = args.known.options()?;
    let out = args.out.as_deref().map(|path| NewFile::plan("--out", path)).transpose()?;
    let mut sources = read_all(&args.files)?;
    // A folder that the user names is input; that this machine shows none is a failure.
    let unreadable = |why| if args.sys == Path::new(SYS) { Failure::Running(why) } else { named(&args.sys, &why) };
    let mut devices = sysfs::read(&args.sys).map_err(unreadable)?;
    // The driver knows this machine only.
    let driver = (args.sys == Path::new(SYS)).then(|| probe(&Search::from_environment()));
    let gpus = devices.iter().filter(|device| device.is_gpu).count();
    if gpus == 0 {
        return Err(Failure::Running(nothing(&args.sys, devices.len(), driver.as_ref())));
    }
    let names: Vec<&str> = driver.iter().flat_map(|probe| &probe.gpus).map(|gpu| gpu.name.as_str()).collect();
    if let Some(first) = names.first().filter(|first| names.iter().all(|name| name == *first)) {
        for device in
            devices.iter_mut().filter(|device| device.is_gpu && device.model.as_ref().is_none_or(|model| model.starts_with("10de:")))
        {
            device.model = Some(gpu_by_words(first).map_or_else(|| (*first).to_owned(), str::to_owned));
        }
    }
    let mut unasked = None;
    if driver.is_some() && !sources.iter().any(|source| source.text.contains("GPU0")) {
        match smi::matrix() {
            Ok(matrix) => sources.push(matrix),
            Err(why) => unasked = Some(format!("no NVLink is known of, as sysfs has none and nobody else was there to ask ({why})")),
        }
    }
    let asked: Vec<String> = sources.iter().skip(args.files.len()).map(|source| source.label.clone()).collect();
    options.name = options.name.or_else(|| Some("detected".to_owned()));
    let label = args.sys.join(sysfs::DEVICES).to_string_lossy().into_owned();
    let mut imported = topology::from_devices(&label, devices, &sources, &options).map_err(|error| {
        // What was not given on the command line cannot be marked there.
        let found = error.place.file == label || asked.contains(&error.place.file);
        if found { Failure::Running(error.to_string()) } else { wrong(error) }
    })?;
    imported.machine.assumptions.extend(unasked);
    if let Some(driver) = &driver {
        imported.machine.assumptions.push(seen_by_driver(driver, gpus));
    }
    answer(&imported, out, args.out.as_deref(), args.json)
}

/// What was looked for where, on a machine without a GPU.
fn named(sys: &Path, why: &str) -> Failure {
    InputError::new("--sys", why)
        .value(sys.to_string_lossy())
        .accepted(["/sys, or a copy of another machine's with bus/pci/devices in it"])
        .into()
}

fn nothing(sys: &Path, devices: usize, driver: Option<&Probe>) -> String {
    let mut text = format!(
        "no NVIDIA GPU: none of the {devices} devices in {} has vendor 0x10de and class 0x0300 or 0x0302",
        sys.join(sysfs::DEVICES).display()
    );
    match driver {
        Some(probe) if !probe.gpus.is_empty() => {
            text.push_str(&format!("; but the CUDA driver shows {}: a container may hide the bus", probe.gpus.len()));
        }
        Some(probe) => text.push_str(&format!("; the CUDA driver was looked for too:\n{probe}")),
        None => text.push_str("; the CUDA driver was not asked, as --sys names another tree"),
    }
    text.trim_end().to_owned()
}

fn seen_by_driver(probe: &Probe, on_bus: usize) -> String {
    match (probe.gpus.len(), probe.gpus.first()) {
        (0, _) | (_, None) => format!("the CUDA driver shows none of the {on_bus} GPUs on the bus: names and links are the bus's alone"),
        (count, Some(first)) => {
            let memory = first.memory_bytes as f64 / f64::from(1u32 << 30);
            format!(
                "the CUDA driver shows {count} of {on_bus} GPUs on the bus; GPU 0: {}, compute capability {}, {} SMs, {memory:.1} GiB",
                first.name, first.compute_capability, first.multiprocessors
            )
        }
    }
}
