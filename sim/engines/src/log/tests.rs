//! Logs as engines print them, shortened.

use super::*;
use crate::finding::Numbers;

const SGLANG_OOM: &str = "\
[2026-02-20 10:00:01] server_args=ServerArgs(model_path='moonshotai/Kimi-K2.5', mem_fraction_static=0.7787, tp_size=8)
[2026-02-20 10:00:20 TP0 EP0] Init torch distributed begin.
[2026-02-20 10:00:31 TP0 EP0] Init torch distributed ends. elapsed=11 s, mem usage=1.52 GB
[2026-02-20 10:00:31 TP0 EP0] Load weight begin. avail mem=94.02 GB
[2026-02-20 10:00:31 TP3 EP3] Load weight begin. avail mem=93.98 GB
[2026-02-20 10:06:11 TP0 EP0] Load weight end. elapsed=340.1 s, type=KimiK25ForConditionalGeneration, dtype=torch.bfloat16, avail mem=16.31 GB, mem usage=77.71 GB.
[2026-02-20 10:06:12 TP0 EP0] Scheduler hit an exception: Traceback (most recent call last):
[2026-02-20 10:06:12 TP3 EP3] Scheduler hit an exception: 
Traceback (most recent call last):
  File \"/sgl/scheduler.py\", line 3100, in run_scheduler_process
    scheduler = Scheduler(
  File \"/sgl/model_runner.py\", line 520, in initialize
    self.init_memory_pool(
  File \"/sgl/model_runner.py\", line 1800, in init_memory_pool
    raise RuntimeError(
RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.
";

const VLLM_KV: &str = "\
INFO 10-02 17:01:02 [api_server.py:1839] vLLM API server version 0.11.0
(EngineCore_DP0 pid=411) INFO 10-02 17:01:40 [gpu_model_runner.py:2602] Starting to load model openai/gpt-oss-120b...
(EngineCore_DP0 pid=411) INFO 10-02 17:02:40 [gpu_model_runner.py:2653] Model loading took 65.9690 GiB and 55.2 seconds
(EngineCore_DP0 pid=411) INFO 10-02 17:03:01 [gpu_worker.py:298] Available KV cache memory: 1.71 GiB
(EngineCore_DP0 pid=411) ERROR 10-02 17:03:01 [core.py:708] EngineCore failed to start.
(EngineCore_DP0 pid=411) ERROR 10-02 17:03:01 [core.py:708] Traceback (most recent call last):
(EngineCore_DP0 pid=411) ERROR 10-02 17:03:01 [core.py:708]   File \"/v/engine/core.py\", line 699, in run_engine_core
(EngineCore_DP0 pid=411) ERROR 10-02 17:03:01 [core.py:708]   File \"/v/core/kv_cache_utils.py\", line 700, in check_enough_kv_cache_memory
(EngineCore_DP0 pid=411) ERROR 10-02 17:03:01 [core.py:708] ValueError: To serve at least one request with the models's max seq len (131072), (4.57 GiB KV cache is needed, which is larger than the available KV cache memory (1.71 GiB). Based on the available memory, the estimated maximum model length is 48,928.
Traceback (most recent call last):
  File \"/v/entrypoints/cli/main.py\", line 54, in main
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
";

#[test]
fn an_sglang_start_that_dies_in_kv_sizing() {
    let log = read(SGLANG_OOM);
    assert_eq!(log.engine, Some(Engine::Sglang));
    assert_eq!((log.free_before_gib, log.free_after_gib, log.weights_gib), (Some(93.98), Some(16.31), Some(77.71)));
    assert_eq!(log.fraction, Some(0.7787));
    assert_eq!(log.died_in(), Some(Phase::KvAlloc));
    let error = log.error.as_ref().expect("it died");
    assert_eq!((error.kind.as_str(), error.function.as_deref(), error.line), ("RuntimeError", Some("init_memory_pool"), 16));
    let mut numbers = Numbers::from([("weights_gib_per_gpu".to_owned(), 77.4)]);
    let pinned = pin(&log, &mut numbers);
    assert!(pinned[0].error().is_some_and(|e| e.abs() < 0.01));
    assert!((numbers["minimum_mem_fraction"] - 0.8265).abs() < 0.001);
}

#[test]
fn a_vllm_start_whose_pool_is_too_small() {
    let log = read(VLLM_KV);
    assert_eq!((log.engine, log.version.as_deref()), (Some(Engine::Vllm), Some("0.11.0")));
    assert_eq!((log.weights_gib, log.kv_gib, log.required_kv_gib), (Some(65.969), Some(1.71), Some(4.57)));
    assert_eq!(log.suggested_max_model_len, Some(48_928.0));
    assert_eq!(log.died_in(), Some(Phase::KvAlloc));
    assert_eq!(log.error.as_ref().map(|e| e.kind.as_str()), Some("ValueError"));
}

#[test]
fn a_capture_that_asserts_and_one_out_of_memory() {
    let assertion = "[TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=7.1 GB\nTraceback (most recent call last):\n  File \"a.py\", line 1, in \
                     init_device_graphs\n  File \"e.py\", line 40, in init_new\n    assert expert_location_metadata is not None\nAssertionError\n";
    let log = read(assertion);
    assert_eq!(log.died_in(), Some(Phase::GraphCapture));
    assert_eq!(log.error.as_ref().and_then(|e| e.function.as_deref()), Some("init_new"));
    let memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU 0 has a total capacity of 139.72 GiB of which 813.06 MiB is free.";
    let allocation = read(memory).allocation.expect("an allocation failed");
    assert!((allocation.asked_gib - 1.75).abs() < 1e-9 && allocation.free_gib.is_some_and(|f| (f - 0.794).abs() < 0.001));
}

#[test]
fn a_start_that_succeeds_and_one_that_is_cut_off() {
    let ready = "KV Cache is allocated. #tokens: 509,184, KV size: 33.32 GB\nCapture cuda graph end. Time elapsed: 8.04 s. mem usage=0.80 GB. avail mem=10.30 GB.\nThe server is fired up and ready to roll!\n";
    let log = read(ready);
    assert!(log.ready && log.died_in().is_none());
    assert_eq!((log.kv_tokens, log.kv_gib, log.graphs_gib), (Some(509_184.0), Some(33.32), Some(0.80)));
    let cut = read("INFO [pynccl.py:111] vLLM is using nccl==2.27.5");
    assert_eq!((cut.reached, cut.died_in()), (Some(Phase::Init), None));
    assert!(cut.ending().contains("hanging"));
    assert_eq!(read("nothing of interest\n\u{0}\u{ffff}"), StartUp::default());
}

#[test]
fn ends_without_a_traceback_of_their_own_lines() {
    let usage = "usage: launch_server.py [-h] --model-path MODEL_PATH\nlaunch_server.py: error: argument --tensor-parallel-size/--tp-size: expected one argument";
    let log = read(usage);
    assert_eq!((log.died_in(), log.error.as_ref().map(|e| e.kind.as_str())), (Some(Phase::Parse), Some("argparse")));
    let memory = "INFO [x.py:1] Starting to load model m...\n(Worker pid=1) ERROR 12-02 10:00:41 torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB.";
    assert_eq!(read(memory).died_in(), Some(Phase::Load));
    let same_line = "[2026-03-02 10:12:47 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File \"/a/sglang/srt/model_runner.py\", line 1, in \
                     init_memory_pool\nRuntimeError: Not enough memory. Please try to increase --mem-fraction-static.";
    let log = read(same_line);
    assert_eq!((log.engine, log.died_in()), (Some(Engine::Sglang), Some(Phase::KvAlloc)));
}

#[test]
fn a_server_that_is_ready_survives_requests_that_fail_and_not_its_engine() {
    let ready = "INFO Application startup complete\n";
    let request = "Traceback (most recent call last):\n  File \"r.py\", line 1, in handle\nValueError: bad request\n";
    assert!(read(&format!("{request}{ready}")).error.is_none());
    assert!(read(&format!("{ready}{request}")).error.is_none());
    let log = read(&format!(
        "{ready}EngineCore encountered a fatal error.\nTraceback (most recent call last):\nRuntimeError: CUDA error: an illegal memory access\n"
    ));
    assert_eq!(log.died_in(), Some(Phase::Serve));
    assert!(log.ending().contains("serve"));
}

#[test]
fn another_programs_log_is_not_recognised() {
    for text in
        ["", "127.0.0.1 - - \"GET / HTTP/1.1\" 200", "Traceback (most recent call last):\n  File \"a.py\", line 1, in main\nKeyError: 'x'"]
    {
        assert!(!read(text).recognised(), "{text}");
    }
    assert!(read("INFO [pynccl.py:111] vLLM is using nccl==2.27.5").recognised());
}

proptest::proptest! {
    /// Whatever the text, nothing panics, numbers are finite, and an error stands on a line of the text.
    #[test]
    fn any_text_is_read(text in "(?s)([ -~\n]|Traceback \\(most recent call last\\):\n|Error: |avail mem=|GiB|, in load_model\n|[0-9.,]{1,9}){0,80}") {
        let log = read(&text);
        let lines = text.lines().count();
        proptest::prop_assert!(log.error.as_ref().is_none_or(|e| e.line >= 1 && e.line <= lines));
        proptest::prop_assert!(log.weights_gib.is_none_or(f64::is_finite));
        let _ = log.ending();
    }
}
