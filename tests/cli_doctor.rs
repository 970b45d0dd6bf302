//! `moetwin doctor` where there is no GPU.

mod support;

use support::{command, finished, line, scratch};

#[test]
fn without_a_gpu_it_names_what_to_install_and_writes_nothing() {
    let folder = scratch("doctor");
    let out = folder.join("box.json");
    let words = ["doctor", "--json", "--out", out.to_str().unwrap()];
    let mut command = command(&words);
    for variable in ["MOETWIN_CUDA_DRIVER", "MOETWIN_NVRTC", "MOETWIN_CUBLASLT", "MOETWIN_NCCL"] {
        command.env(variable, &folder);
    }
    let run = finished(command.output().unwrap(), &words);
    assert_eq!((run.code, run.out.as_str()), (3, ""), "{}", run.err);
    for needed in
        ["no GPU can be examined here", "CUDA driver", "install the NVIDIA driver, R580", "NVRTC", "pip install nvidia-cuda-nvrtc"]
    {
        assert!(run.err.contains(needed), "no {needed:?} in: {}", run.err);
    }
    assert!(!out.exists());
}

#[test]
fn bad_arguments_are_named() {
    line("doctor --out /no/such/folder/box.json").refused(&["--out '/no/such/folder/box.json'"]);
    line("doctor --check smell").refused(&["--check 'smell'", "accepted: describe, single, copy"]);
    line("doctor --check copy --items 0-x").refused(&["--items", "0-x"]);
}
