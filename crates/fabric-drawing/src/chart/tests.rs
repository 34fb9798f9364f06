use proptest::prelude::*;

use super::axis::AxisRange;
use super::labels::{NAME_SIZE, NAME_STEP, rows, spread};
use super::svg::COLOURS;
use super::*;
use crate::page::text_width;

fn chart(series: Vec<Series>, reference_lines: Vec<ReferenceLine>) -> LineChart {
    let (x, y) = (Axis::linear("time in µs"), Axis::linear("Gb/s per node"));
    LineChart { title: "t".to_owned(), subtitle: "s".to_owned(), x, y, series, reference_lines }
}

fn ticks(axis: &Axis, values: &[f64]) -> String {
    let ticks = AxisRange::new(axis, values.iter().copied()).ticks();
    ticks.into_iter().map(|tick| tick.text).collect::<Vec<_>>().join(" ")
}

#[test]
fn linear_ticks_are_round_and_begin_at_0() {
    let axis = Axis::linear("");
    assert_eq!(ticks(&axis, &[37.0, 61.5]), "0 20 40 60 80");
    assert_eq!(ticks(&axis, &[1944.0]), "0 500 1,000 1,500 2,000");
    assert_eq!(ticks(&axis, &[0.9]), "0.0 0.2 0.4 0.6 0.8 1.0");
    assert_eq!(ticks(&axis, &[-3.0, 4.0]), "−4 −2 0 2 4");
    assert_eq!(ticks(&axis, &[3e9]), "0 5.0e8 1.0e9 1.5e9 2.0e9 2.5e9 3.0e9");
    assert_eq!(ticks(&axis, &[]), "0.0 0.2 0.4 0.6 0.8 1.0");
    assert_eq!(ticks(&axis.clone().with_range(100.0, 130.0), &[1.0]), "100 105 110 115 120 125 130");
    assert_eq!(ticks(&axis.with_range(5.0, 5.0), &[4.0]), "0 1 2 3 4", "an invalid range is ignored");
}

#[test]
fn log_ticks_are_powers_of_ten_or_1_2_5() {
    let axis = Axis::log("");
    assert_eq!(ticks(&axis, &[1.3, 47.0]), "1 2 5 10 20 50");
    assert_eq!(ticks(&axis, &[1.0, 2e-6]), "10⁻⁵ 10⁻⁴ 10⁻³ 10⁻² 10⁻¹ 1");
    assert_eq!(ticks(&axis, &[0.02, 3000.0]), "0.1 1 10 100 1,000");
    assert_eq!(ticks(&axis, &[5.0, 5.0]), "2 5 10");
    assert_eq!(ticks(&axis, &[0.0, -1.0, f64::NAN]), "1 2 5 10", "values without a position are ignored");
    assert_eq!(ticks(&axis.with_range(3.0, 4.0), &[]), "3.0 3.2 3.4 3.6 3.8 4.0");
}

#[test]
fn labels_are_at_the_ends_of_lines_that_end_at_the_right() {
    let horizontal = |name: &str, y: f64| Series::new(name, vec![(0.0, y), (10.0, y)]);
    let at_ends =
        chart(vec![horizontal("a", 1.0), horizontal("b", 9.0)], vec![ReferenceLine::at_y("guarantee", 5.0)])
            .to_svg();
    let height = |svg: &str, name: &str| -> f32 {
        let line = svg.lines().find(|line| line.contains(&format!(">{name}</text>"))).unwrap();
        line.split("y=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
    };
    assert!(height(&at_ends, "b") < height(&at_ends, "guarantee"));
    assert!(height(&at_ends, "guarantee") < height(&at_ends, "a"));
    let short = Series::new("b", vec![(0.0, 9.0), (4.0, 9.0)]);
    let listed = chart(vec![horizontal("a", 1.0), short], vec![]).to_svg();
    assert!(height(&listed, "a") < height(&listed, "b"), "in their order");
}

#[test]
fn labels_are_escaped_and_truncated() {
    let long = "x".repeat(60);
    let svg = chart(
        vec![Series::new("<b> & \"c\"", vec![(1.0, 1.0)]), Series::new(long.clone(), vec![])],
        vec![ReferenceLine::at_x("<bound>", 1.0)],
    )
    .to_svg();
    assert!(svg.contains(">&lt;b&gt; &amp; &quot;c&quot;</text>") && svg.contains("&lt;bound&gt;"));
    assert!(svg.contains(&format!("{}… (no values)", "x".repeat(43))), "{svg}");
    assert!(svg.contains(&format!("<title>{long}</title>")), "the tooltip has the full name");
}

#[test]
fn lines_break_at_points_without_a_position() {
    let points =
        vec![(0.0, 1.0), (1.0, 1.0), (2.0, f64::NAN), (3.0, 1.0), (4.0, 1.0), (5.0, f64::NAN), (6.0, 1.0)];
    let svg = chart(vec![Series::new("a", points)], vec![]).to_svg();
    let path = svg.lines().find(|line| line.contains("stroke-width=\"2\"")).unwrap();
    assert_eq!(path.matches('M').count(), 2, "{path}");
    assert_eq!(svg.matches("<circle").count(), 1, "a single point is a dot");
}

#[test]
fn lines_are_clipped_to_the_given_range() {
    let mut chart =
        chart(vec![Series::new("a", vec![(0.0, 0.0), (10.0, 20.0)])], vec![ReferenceLine::at_y("far", 30.0)]);
    chart.y = chart.y.with_range(0.0, 10.0);
    chart.x = chart.x.with_range(0.0, 10.0);
    let svg = chart.to_svg();
    let path = svg.lines().find(|line| line.contains("stroke-width=\"2\"")).unwrap();
    assert!(path.contains("M82.0 528.0L442.0 128.0\""), "half of the width, all of the height: {path}");
    assert!(!svg.contains("far"), "a reference line outside is not drawn");
}

#[test]
fn a_chart_is_rendered_as_in_the_snapshot() {
    let chart = LineChart {
        x: Axis::log("latency in µs"),
        y: Axis::log("share of packets that took longer"),
        series: vec![
            Series::new("a", vec![(1.2, 1.0), (1.9, 0.1), (2.4, 0.01)]),
            Series::new("a, one class", vec![(1.2, 1.0), (4.9, 0.1), (9.4, 0.01), (9.5, 0.0)])
                .coloured(0)
                .dashed(),
        ],
        reference_lines: vec![
            ReferenceLine::at_x("bound", 3.1),
            ReferenceLine::at_y("1 in 20", 0.05).coloured(1),
        ],
        ..chart(vec![], vec![])
    };
    insta::assert_snapshot!(chart.to_svg(), @r##"
    <svg xmlns="http://www.w3.org/2000/svg" width="983" height="629" viewBox="0 0 983 629" font-family="Inter, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif">
    <title>t</title>
    <rect width="100%" height="100%" fill="#fbfaf7"/>
    <text x="48" y="50" font-size="23" font-weight="600" fill="#2b323c">t</text>
    <text x="48" y="74" font-size="13" fill="#7b8490">s</text>
    <text x="83.1" y="565.0" font-size="11" text-anchor="middle" fill="#7b8490">1</text>
    <text x="299.8" y="565.0" font-size="11" text-anchor="middle" fill="#7b8490">2</text>
    <text x="586.3" y="565.0" font-size="11" text-anchor="middle" fill="#7b8490">5</text>
    <text x="803.1" y="565.0" font-size="11" text-anchor="middle" fill="#7b8490">10</text>
    <text x="74.1" y="549.0" font-size="11" text-anchor="end" fill="#7b8490">0.01</text>
    <text x="74.1" y="488.8" font-size="11" text-anchor="end" fill="#7b8490">0.02</text>
    <text x="74.1" y="409.2" font-size="11" text-anchor="end" fill="#7b8490">0.05</text>
    <text x="74.1" y="349.0" font-size="11" text-anchor="end" fill="#7b8490">0.1</text>
    <text x="74.1" y="288.8" font-size="11" text-anchor="end" fill="#7b8490">0.2</text>
    <text x="74.1" y="209.2" font-size="11" text-anchor="end" fill="#7b8490">0.5</text>
    <text x="74.1" y="149.0" font-size="11" text-anchor="end" fill="#7b8490">1</text>
    <path d="M83.1 145.0V545.0M299.8 145.0V545.0M586.3 145.0V545.0M803.1 145.0V545.0M83.1 545.0H803.1M83.1 484.8H803.1M83.1 405.2H803.1M83.1 345.0H803.1M83.1 284.8H803.1M83.1 205.2H803.1M83.1 145.0H803.1" fill="none" stroke="#e6e2d8"/>
    <path d="M299.8 545.0v4M426.6 545.0v4M516.6 545.0v4M586.3 545.0v4M643.3 545.0v4M691.6 545.0v4M733.3 545.0v4M770.1 545.0v4M83.1 484.8h-4M83.1 449.6h-4M83.1 424.6h-4M83.1 405.2h-4M83.1 389.4h-4M83.1 376.0h-4M83.1 364.4h-4M83.1 354.2h-4M83.1 284.8h-4M83.1 249.6h-4M83.1 224.6h-4M83.1 205.2h-4M83.1 189.4h-4M83.1 176.0h-4M83.1 164.4h-4M83.1 154.2h-4" fill="none" stroke="#7b8490" stroke-opacity="0.5"/>
    <path d="M83.1 145.0V545.0H803.1" fill="none" stroke="#7b8490" stroke-width="1.2"/>
    <text x="48.0" y="114.0" font-size="12" text-anchor="start" fill="#2b323c">share of packets that took longer</text>
    <text x="443.1" y="589.0" font-size="12" text-anchor="middle" fill="#2b323c">latency in µs</text>
    <path d="M436.9 127.0V545.0" fill="none" stroke="#7b8490" stroke-width="1.2" stroke-linejoin="round" stroke-dasharray="3 3"/>
    <text x="441.9" y="136.0" font-size="12" fill="#2b323c">bound</text>
    <path d="M83.1 405.2H803.1" fill="none" stroke="#ca4c00" stroke-width="1.2" stroke-linejoin="round" stroke-dasharray="3 3"/>
    <path d="M140.1 145.0L580.0 345.0L783.7 545.0" fill="none" stroke="#006fde" stroke-width="2" stroke-linejoin="round" stroke-dasharray="7 4"/>
    <path d="M140.1 145.0L283.8 345.0L356.8 545.0" fill="none" stroke="#006fde" stroke-width="2" stroke-linejoin="round"/>
    <path d="M825.1 154.5h20" fill="none" stroke="#006fde" stroke-width="2" stroke-linejoin="round"/>
    <text x="853.1" y="158.5" font-size="12" fill="#2b323c">a</text>
    <path d="M825.1 173.5h20" fill="none" stroke="#006fde" stroke-width="2" stroke-linejoin="round" stroke-dasharray="7 4"/>
    <text x="853.1" y="177.5" font-size="12" fill="#2b323c">a, one class</text>
    <path d="M825.1 192.5h20" fill="none" stroke="#ca4c00" stroke-width="1.2" stroke-linejoin="round" stroke-dasharray="3 3"/>
    <text x="853.1" y="196.5" font-size="12" fill="#2b323c">1 in 20</text>
    </svg>
    "##);
}

/// Normal colour vision and the lack of each kind of cone, as matrices over linear RGB: Machado, Oliveira and Fernandes, "A
/// physiologically-based model for simulation of color vision deficiency", 2009, full severity.
const COLOUR_VISIONS: [[[f64; 3]; 3]; 4] = [
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
];

/// A colour as it is perceived, in CIELAB.
fn perceived(colour: &str, vision: &[[f64; 3]; 3]) -> [f64; 3] {
    let channel = |at: usize| f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
    let linear = [1, 3, 5]
        .map(channel)
        .map(|c| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) });
    let times = |row: &[f64; 3], c: &[f64; 3]| row[0] * c[0] + row[1] * c[1] + row[2] * c[2];
    let rgb = [0, 1, 2].map(|row| times(&vision[row], &linear));
    let root = |t: f64| if t > 0.008856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
    let x = root(times(&[0.4124, 0.3576, 0.1805], &rgb) / 0.95047);
    let y = root(times(&[0.2126, 0.7152, 0.0722], &rgb));
    let z = root(times(&[0.0193, 0.1192, 0.9505], &rgb) / 1.08883);
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

#[test]
fn colours_are_distinguishable_with_any_colour_vision() {
    for vision in &COLOUR_VISIONS {
        let colours = COLOURS.map(|colour| (colour, perceived(colour, vision)));
        for (number, (a, [l, m, n])) in colours.iter().enumerate() {
            for (b, [p, q, r]) in &colours[number + 1..] {
                let distance = ((l - p).powi(2) + (m - q).powi(2) + (n - r).powi(2)).sqrt();
                assert!(distance > 25.0, "{a} and {b}: {distance:.1}");
            }
        }
    }
}

/// Any floating-point value, including NaN and infinities.
fn value() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => -10.0..100.0,
        1 => any::<f64>(),
        1 => prop::sample::select(vec![
            0.0, -0.0, 1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324,
            1e100, -1e100, 1e-100, 1e99,
        ]),
    ]
}

fn axis() -> impl Strategy<Value = Axis> {
    (any::<bool>(), prop::option::of((value(), value()))).prop_map(|(log, range)| {
        let scale = if log { Scale::Log } else { Scale::Linear };
        Axis { label: "<axis>".to_owned(), scale, range }
    })
}

fn series() -> impl Strategy<Value = Series> {
    let points = prop_oneof![
        prop::collection::vec((value(), value()), 0..12),
        (value(), value(), 0..4usize).prop_map(|(x, y, count)| vec![(x, y); count]),
    ];
    ("[ -~µ\u{0}\u{ffff}]{0,60}", points, any::<bool>(), prop::option::of(0..50usize)).prop_map(
        |(name, points, dashed, colour)| {
            let style = if dashed { LineStyle::Dashed } else { LineStyle::Solid };
            Series { name: name.replace('N', "n").replace('i', "j"), points, style, colour }
        },
    )
}

fn reference_line() -> impl Strategy<Value = ReferenceLine> {
    (any::<bool>(), value(), prop::option::of(0..50usize)).prop_map(|(vertical, at, colour)| {
        let at = if vertical { Position::X(at) } else { Position::Y(at) };
        ReferenceLine { name: "bound & guarantee".to_owned(), at, colour }
    })
}

fn is_no_xml(c: char) -> bool {
    (c.is_control() && c != '\n') || c == '\u{ffff}'
}

/// The numbers in the attributes with coordinates and sizes.
fn coordinates(svg: &str) -> Vec<f64> {
    let values = [" x=\"", " y=\"", " cx=\"", " cy=\"", " width=\"", " height=\"", " d=\"", " viewBox=\""];
    let values =
        values.iter().flat_map(|name| svg.split(name).skip(1).filter_map(|rest| rest.split('"').next()));
    let numbers = values.filter(|value| *value != "100%").flat_map(|value| {
        value.split(|c: char| c.is_ascii_alphabetic() || c == ' ').filter(|number| !number.is_empty())
    });
    numbers.map(|number| number.parse().unwrap()).collect()
}

proptest! {
    #[test]
    fn coordinates_stay_in_the_drawing_for_any_values(
        (x, y) in (axis(), axis()),
        series in prop::collection::vec(series(), 0..22),
        reference_lines in prop::collection::vec(reference_line(), 0..6),
    ) {
        let lines = LineChart { title: "chart".to_owned(), subtitle: String::new(), x, y, series, reference_lines };
        let svg = lines.to_svg();
        prop_assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}", svg);
        prop_assert!(!svg.chars().any(is_no_xml), "{}", svg);
        let numbers = coordinates(&svg);
        prop_assert!(numbers.iter().all(|number| (-30.0..3000.0).contains(number)), "{}", svg);
        prop_assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        prop_assert_eq!(svg.matches('<').count(), svg.matches('>').count());
    }

    #[test]
    fn axes_cover_their_values_with_two_ticks_or_more(
        values in prop::collection::vec(value(), 0..9),
        axis in axis(),
    ) {
        let own = AxisRange::new(&Axis { range: None, ..axis.clone() }, values.iter().copied());
        for value in &values {
            prop_assert_eq!(own.at(*value).is_some(), own.inside(*value).is_some(), "{} on {:?}", value, own);
        }
        for ruler in [&own, &AxisRange::new(&axis, values.iter().copied())] {
            let ticks = ruler.ticks();
            prop_assert!((2..=14).contains(&ticks.len()), "{:?}: {:?}", ruler, ticks);
            prop_assert!(ticks.is_sorted_by(|a, b| a.at < b.at && a.text != b.text), "{:?}: {:?}", ruler, ticks);
        }
    }

    #[test]
    fn labels_beside_the_plot_do_not_overlap(wanted in prop::collection::vec(0.0f32..400.0, 0..20)) {
        let mut heights = spread(&wanted, 0.0, 400.0);
        heights.sort_by(f32::total_cmp);
        prop_assert!(heights.windows(2).all(|pair| pair[1] - pair[0] > NAME_STEP - 0.01), "{:?}", heights);
        prop_assert!(heights.iter().all(|height| (0.0..=400.0).contains(height)), "{:?}", heights);
    }

    #[test]
    fn labels_above_the_plot_cross_no_line(begins in prop::collection::vec((0.0f32..700.0, "[a-z]{1,30}"), 0..9)) {
        let names: Vec<(f32, &str)> = begins.iter().map(|(x, name)| (*x, name.as_str())).collect();
        let rows = rows(&names);
        for (a, (x, name)) in names.iter().enumerate() {
            let end = x + text_width(name, NAME_SIZE);
            for (b, (other, _)) in names.iter().enumerate() {
                // A vertical line passes its own row and those below.
                let passes = a != b && rows[b] >= rows[a] && other > x && *other < end;
                prop_assert!(!passes, "{:?} in rows {:?}", names, rows);
            }
        }
    }
}
