//! FP4 e2m1 and its e8m0 block scale (OCP Microscaling Formats v1.0, sections 5.3.3 and 5.4.1).

use super::fp8::exp2;

/// Magnitudes of the eight codes without sign.
const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The value of a 4-bit code (bit 3 is the sign).
pub(super) fn decode_e2m1(code: u8) -> f32 {
    let magnitude = MAGNITUDES[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// The nearest 4-bit code, ties to the even code; saturates at ±6.
pub(super) fn encode_e2m1(value: f32) -> u8 {
    let magnitude = value.abs();
    // A value exactly between two codes goes to the even one: strictly above the midpoint for odd codes to stay put.
    let above = |i: usize| {
        let midpoint = (MAGNITUDES[i] + MAGNITUDES[i + 1]) / 2.0;
        if i.is_multiple_of(2) { magnitude > midpoint } else { magnitude >= midpoint }
    };
    let code = (0..7).take_while(|&i| above(i)).count() as u8;
    if value.is_sign_negative() { code | 8 } else { code }
}

/// The value of an e8m0 scale: `2^(code - 127)`, NaN for 255.
pub(super) fn decode_e8m0(code: u8) -> f32 {
    match code {
        0xff => f32::NAN,
        // 2^-127 is a subnormal of f32.
        0 => exp2(-126) / 2.0,
        _ => exp2(i32::from(code) - 127),
    }
}

/// The e8m0 scale of a block whose largest magnitude is `largest`: its power of two, less e2m1's largest exponent (2).
pub(super) fn scale_e8m0(largest: f32) -> u8 {
    let exponent = (largest.to_bits() >> 23 & 0xff) as i32;
    (exponent - 2).max(0) as u8
}
