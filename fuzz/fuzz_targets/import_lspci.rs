//! `lspci -vv` as a machine's topology; the oracle is in tests/cases.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| moetwin_cases::check_import_lspci(data));
