//! Tokenizer files; the oracle is in tests/cases.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| moetwin_cases::check_tokenizer(data));
