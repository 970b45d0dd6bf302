//! Compiles every kernel for the architectures given and fails where one spills, keeps a stack frame, or takes more shared memory than a block
//! may have: `cargo run -p moetwin-cuda --example compile_kernels -- 90a 120a`. Needs NVRTC and CUDA's headers, but no GPU.

use moetwin_cuda::Search;
use moetwin_cuda::exec::compile::{KernelResources, resources};
use std::error::Error;
use std::io::{Write, stdout};

/// Shared memory that a block may have on compute capability 12.0, the smallest of the architectures (CUDA C++ programming guide 13.0, table
/// of technical specifications: 99 KB; 227 KB on 9.0).
const SHARED_LIMIT_BYTES: u32 = 99 << 10;

fn fault(k: &KernelResources) -> Option<String> {
    if k.spill_bytes > 0 || k.stack_bytes > 0 {
        return Some(format!("{} bytes of spills, {} of stack", k.spill_bytes, k.stack_bytes));
    }
    (k.shared_bytes > SHARED_LIMIT_BYTES).then(|| format!("{} bytes of shared memory, {SHARED_LIMIT_BYTES} allowed", k.shared_bytes))
}

fn main() -> Result<(), Box<dyn Error>> {
    let search = Search::from_environment();
    let (mut kernels, mut faults) = (0, Vec::new());
    let architectures: Vec<String> = std::env::args().skip(1).collect();
    if architectures.is_empty() {
        return Err("usage: compile_kernels ARCHITECTURE..., for example 90a 120a".into());
    }
    for architecture in &architectures {
        for (source, found) in resources(&search, architecture)? {
            if found.is_empty() {
                faults.push(format!("sm_{architecture} {source}: no kernel in the compiler's report"));
            }
            for k in found {
                kernels += 1;
                writeln!(
                    stdout(),
                    "sm_{architecture:<5} {source:<16} {:<36} {:>3} registers {:>6} shared",
                    k.kernel,
                    k.registers,
                    k.shared_bytes
                )?;
                faults.extend(fault(&k).map(|f| format!("sm_{architecture} {}: {f}", k.kernel)));
            }
        }
    }
    writeln!(stdout(), "{kernels} kernels compiled, {} faults", faults.len())?;
    if faults.is_empty() { Ok(()) } else { Err(faults.join("; ").into()) }
}
