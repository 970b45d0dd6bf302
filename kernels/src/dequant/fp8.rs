//! FP8 e4m3fn: 1 sign, 4 exponent (bias 7) and 3 mantissa bits, no infinities, NaN is all ones
//! (Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433, table 1).

/// Largest finite value, `1.75 * 2^8`.
pub(super) const E4M3_MAX: f32 = 448.0;

/// The value of an e4m3fn byte; exact.
pub fn decode_e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 0xf), f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (0xf, 7) => f32::NAN,
        (0, _) => mantissa * exp2(-9),
        _ => (1.0 + mantissa / 8.0) * exp2(exponent - 7),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The nearest e4m3fn byte, ties to the even mantissa; values beyond the range saturate at ±448, NaN stays NaN.
pub fn encode_e4m3(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = value.abs().min(E4M3_MAX);
    // The exponent of the value, at least that of the smallest normal: below it the spacing stays 2^-9.
    let exponent = (((magnitude.to_bits() >> 23) as i32) - 127).max(-6);
    // Spacings of 2^(exponent - 3): the scaled value is at most 16, so rounding to an integer is exact in f32.
    let steps = (magnitude * exp2(3 - exponent)).round_ties_even() as u8;
    // `steps` counts from zero in a subnormal range and from 8 in a normal one; 16 carries into the next exponent by itself.
    let biased = (exponent + 6) as u8;
    sign | (biased * 8 + steps)
}

/// `2^exponent` for exponents of normal f32 numbers.
pub(super) fn exp2(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}
