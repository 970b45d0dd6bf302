//! Machine files.

use crate::check_reason;
use moetwin_sim::machine;
use moetwin_sim::network::Network;

/// Any bytes as a machine file: rejected with a reason, or a machine that is written and read back the same and whose GPUs all reach each
/// other.
pub fn check_machine(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match machine::from_json(text) {
        Err(e) => check_reason(&e.to_string()),
        Ok(machine) => {
            let again = machine::from_json(&machine.to_json()).unwrap_or_else(|e| panic!("its own file is refused: {e}"));
            assert_eq!(again, machine);
            let network = Network::new(&machine);
            let n = machine.gpu_count();
            assert!(n > 0, "a machine without GPUs");
            for gpu in 0..n {
                assert!(machine.gpu(gpu).is_some(), "GPU {gpu} has no model");
                let next = (gpu + 1) % n;
                assert!(next == gpu || network.class(gpu, next).is_ok(), "GPU {gpu} does not reach GPU {next}");
            }
        }
    }
}
