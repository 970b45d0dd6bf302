use super::*;
use proptest::prelude::*;

const FORMATS: [WeightFormat; 7] = [
    WeightFormat::Bf16,
    WeightFormat::F16,
    WeightFormat::F32,
    WeightFormat::Fp8Block { rows: 3, cols: 5 },
    WeightFormat::Int4Group { group: 32 },
    WeightFormat::Nvfp4,
    WeightFormat::Mxfp4,
];

/// Published values of e4m3fn: arXiv 2209.05433, table 1, and the neighbours of each.
#[test]
fn e4m3_values_are_the_published_ones() {
    for (byte, value) in [
        (0x00, 0.0),
        (0x01, 0.001953125),
        (0x07, 0.013671875),
        (0x08, 0.015625),
        (0x38, 1.0),
        (0x39, 1.125),
        (0x40, 2.0),
        (0x7e, 448.0),
        (0xb8, -1.0),
        (0xfe, -448.0),
    ] {
        assert_eq!(decode_e4m3(byte), value, "{byte:#x}");
        assert_eq!(encode_e4m3(value), byte, "{value}");
    }
    assert!(decode_e4m3(0x7f).is_nan() && decode_e4m3(0xff).is_nan());
    assert_eq!(encode_e4m3(1e9), 0x7e);
    assert_eq!(encode_e4m3(f32::NEG_INFINITY), 0xfe);
    assert_eq!(encode_e4m3(f32::NAN) & 0x7f, 0x7f);
}

/// Naive twin of the encoder: the nearest of all 256 values, the even byte of two equally near ones.
fn nearest_e4m3(value: f32) -> u8 {
    let finite = (0..=255u8).filter(|b| b & 0x7f != 0x7f && (*b >= 0x80) == value.is_sign_negative());
    let distance = |b: u8| (f64::from(decode_e4m3(b)) - f64::from(value.clamp(-448.0, 448.0))).abs();
    finite.min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1)))).expect("there are 254 finite bytes")
}

#[test]
fn every_e4m3_byte_survives_a_round_trip() {
    for byte in (0..=255u8).filter(|b| b & 0x7f != 0x7f) {
        assert_eq!(encode_e4m3(decode_e4m3(byte)), byte);
    }
}

/// INT4 by hand: nibbles 0..15 low first are -8..7, two groups with scales 0.5 and 3.
#[test]
fn int4_nibbles_count_from_minus_eight_lowest_first() {
    let words = [0x7654_3210u32, 0xfedc_ba98, 0x7654_3210, 0xfedc_ba98];
    let data: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let scales: Vec<u8> = [0.5f32, 3.0].iter().flat_map(|s| bf16::from_f32(*s).to_le_bytes()).collect();
    let m = StoredMatrix::new(WeightFormat::Int4Group { group: 16 }, 1, 32, Parts::scaled(&data, &scales)).unwrap();
    let expected: Vec<f32> = (0..32).map(|i| ((i % 16) as f32 - 8.0) * if i < 16 { 0.5 } else { 3.0 }).collect();
    assert_eq!(m.decode_all().unwrap(), expected);
    assert_eq!(m.decode(0..1, 15..18).unwrap(), [3.5, -24.0, -21.0]);
}

/// 7 * 1.0078125 = 7.0546875 is no bf16 number: the product is not rounded.
#[test]
fn int4_products_are_exact() {
    let data = 0xfu32.to_le_bytes();
    let scales = bf16::from_f32(1.0078125).to_le_bytes();
    let m = StoredMatrix::new(WeightFormat::Int4Group { group: 32 }, 1, 1, Parts::scaled(&data, &scales)).unwrap();
    assert_eq!(m.decode_all().unwrap(), [7.0546875]);
}

#[test]
fn fp8_scales_cover_blocks_with_a_short_last_one() {
    let data = [0x38u8; 12]; // ones, [3, 4]
    let scales: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|s| s.to_le_bytes()).collect();
    let m = StoredMatrix::new(WeightFormat::Fp8Block { rows: 2, cols: 3 }, 3, 4, Parts::scaled(&data, &scales)).unwrap();
    assert_eq!(m.decode_all().unwrap(), [1., 1., 1., 2., 1., 1., 1., 2., 3., 3., 3., 4.]);
    assert_eq!(m.decode(2..3, 2..4).unwrap(), [3., 4.]);
}

/// The sixteen codes of e2m1 (OCP Microscaling Formats v1.0, table 5) under a scale of 2^1 and under 1.5 * 0.25.
#[test]
fn fp4_codes_are_the_published_ones() {
    let data: Vec<u8> = (0..8).map(|i| (2 * i) | (2 * i + 1) << 4).collect();
    let values = [0., 0.5, 1., 1.5, 2., 3., 4., 6., -0., -0.5, -1., -1.5, -2., -3., -4., -6.];
    let mx = StoredMatrix::new(WeightFormat::Mxfp4, 1, 16, Parts::scaled(&data, &[128])).unwrap();
    assert_eq!(mx.decode_all().unwrap(), values.map(|v| v * 2.0));
    let nv = Parts { data: &data, scales: &[0x3c], tensor_scale: 0.25 };
    let nv = StoredMatrix::new(WeightFormat::Nvfp4, 1, 16, nv).unwrap();
    assert_eq!(nv.decode_all().unwrap(), values.map(|v| v * 1.5 * 0.25));
    assert_eq!(fp4::decode_e8m0(0), 2f32.powi(-127));
    assert!(fp4::decode_e8m0(255).is_nan());
}

#[test]
fn wrong_lengths_and_rectangles_are_named() {
    let format = WeightFormat::Int4Group { group: 32 };
    let short = StoredMatrix::new(format, 2, 64, Parts::scaled(&[0; 63], &[0; 8])).unwrap_err();
    assert_eq!(short.to_string(), "int4_g32 matrix [2, 64]: 63 bytes of elements, expected 64");
    let scales = StoredMatrix::new(format, 2, 64, Parts::scaled(&[0; 64], &[0; 6])).unwrap_err();
    assert_eq!(scales.to_string(), "int4_g32 matrix [2, 64]: 6 bytes of scales, expected 8");
    let m = StoredMatrix::new(format, 2, 64, Parts::scaled(&[0; 64], &[0; 8])).unwrap();
    assert_eq!(m.decode(0..3, 0..1).unwrap_err().to_string(), "rows 0..3 asked of a matrix with 2 rows");
    assert!(matches!(m.decode_into(0..1, 0..2, &mut [0.0]), Err(DequantError::OutputLength { got: 1, expected: 2 })));
    assert!(matches!(StoredMatrix::new(WeightFormat::F32, usize::MAX, 2, Parts::plain(&[])), Err(DequantError::TooLarge { .. })));
    let empty = WeightFormat::Fp8Block { rows: 0, cols: 1 };
    assert!(matches!(StoredMatrix::new(empty, 1, 1, Parts::plain(&[])), Err(DequantError::EmptyBlock { .. })));
    assert!(matches!(quantize(WeightFormat::F32, 1, 1, &[f32::NAN]), Err(DequantError::NotFinite { index: 0, .. })));
    assert!(matches!(quantize(WeightFormat::F32, 1, 2, &[1.0]), Err(DequantError::OutputLength { .. })));
}

#[test]
fn stored_bytes_agree_with_the_models_crate() {
    for format in FORMATS {
        for (rows, cols) in [(0, 7), (1, 1), (5, 33), (128, 96), (7, 0)] {
            let (data, scales) = stored_bytes(format, rows, cols).unwrap();
            let tensor_scale = if format == WeightFormat::Nvfp4 { 4 } else { 0 };
            assert_eq!((data + scales + tensor_scale) as u64, format.matrix_bytes(rows as u64, cols as u64), "{format:?} [{rows}, {cols}]");
        }
    }
}

/// The largest error of a round trip, as a share of the largest magnitude of the block.
fn tolerance(format: WeightFormat) -> f32 {
    match format {
        WeightFormat::F32 => 0.0,
        WeightFormat::F16 => 1.0 / 1024.0,
        WeightFormat::Bf16 => 1.0 / 256.0,
        WeightFormat::Fp8Block { .. } => 1.0 / 16.0,
        // Half a step of 1/7, and the rounding of the scale.
        WeightFormat::Int4Group { .. } => 0.5 / 7.0 + 1.0 / 256.0,
        // Half the widest step (2 of 6), and the rounding of the scale; MX saturates values of 6..8 at 6.
        WeightFormat::Nvfp4 => 1.0 / 6.0 + 1.0 / 16.0,
        WeightFormat::Mxfp4 => 0.25,
    }
}

proptest! {
    #[test]
    fn e4m3_encoder_finds_the_nearest(bits in any::<u32>(), small in -500.0f32..500.0) {
        for value in [f32::from_bits(bits), small, small / 1000.0] {
            if value.is_finite() {
                prop_assert_eq!(encode_e4m3(value), nearest_e4m3(value), "{}", value);
            }
        }
    }

    #[test]
    fn quantized_values_come_back_close_and_in_any_rectangle(
        format in prop::sample::select(FORMATS.to_vec()),
        (rows, cols, values) in (0usize..9, 0usize..70).prop_flat_map(|(r, c)| {
            (Just(r), Just(c), prop::collection::vec(-4.0f32..4.0, r * c))
        }),
        cut in any::<[prop::sample::Index; 4]>(),
    ) {
        let stored = quantize(format, rows, cols, &values).unwrap();
        let matrix = StoredMatrix::new(format, rows, cols, stored.parts()).unwrap();
        let decoded = matrix.decode_all().unwrap();
        let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        for (a, b) in values.iter().zip(&decoded) {
            prop_assert!((a - b).abs() <= tolerance(format) * largest, "{} became {}", a, b);
        }
        let range = |a: prop::sample::Index, b: prop::sample::Index, n: usize| {
            let (a, b) = (a.index(n + 1), b.index(n + 1));
            a.min(b)..a.max(b)
        };
        let (r, c) = (range(cut[0], cut[1], rows), range(cut[2], cut[3], cols));
        let expected: Vec<f32> = r.clone().flat_map(|r| c.clone().map(move |c| r * cols + c)).map(|i| decoded[i]).collect();
        prop_assert_eq!(matrix.decode(r, c).unwrap(), expected);
    }
}
