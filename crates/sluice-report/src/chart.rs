//! Charts, drawn by plotters; other files do not use it directly.
//!
//! Nothing lies over the data: lines have their names at their ends, in the right margin, and bars have a legend above them. Published
//! values are points over the lines. Reservations and limits are dashed lines across, and a band between two levels is shaded. Moments at which
//! something changed are dashed lines upright, with a number above them.

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::{Deserialize, Serialize};

/// Colours that people with colour-blindness can distinguish: \[Okabe and Ito 2008\].
pub(crate) const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(150, 130, 20),
];
pub(crate) const SIZE: (u32, u32) = (760, 360);
/// Size of text and of titles. The backend writes it as pixels divided by 1.24: 15 is 12.1.
pub(crate) const FONT: (&str, i32) = ("sans-serif", 15);
pub(crate) const TITLE: (&str, i32) = ("sans-serif", 18);
/// Height of a label, and its approximate width per character, in pixels.
const LABEL: (i32, u32) = (15, 7);
/// Widest right margin for labels, in pixels.
const MARGIN_MAX: u32 = 240;
/// Height of the legend of bars, in pixels.
const LEGEND: i32 = 20;
/// Margin around a chart, in pixels.
pub(crate) const MARGIN: u32 = 12;

pub(crate) type Plane<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
pub(crate) type Drawn<'a, T = ()> = Result<T, Box<dyn std::error::Error + 'a>>;

/// A named series.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Name in the chart.
    pub name: String,
    /// For bars: one value per category, in order; the first coordinate is ignored.
    pub points: Vec<(f64, f64)>,
    /// Values of the paper at some points of a line.
    #[serde(default)]
    pub published: Vec<(f64, f64)>,
}

impl Line {
    /// A series of points.
    #[must_use]
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Line { name: name.into(), points, published: Vec::new() }
    }

    /// One bar for each category.
    #[must_use]
    pub fn bars(name: impl Into<String>, heights: &[f64]) -> Self {
        Line::new(name, heights.iter().map(|height| (0.0, *height)).collect())
    }

    /// Adds values that the paper states.
    #[must_use]
    pub fn published(mut self, points: Vec<(f64, f64)>) -> Self {
        self.published = points;
        self
    }
}

/// Kind of a chart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Shape {
    /// Points connected by lines.
    Lines,
    /// Areas on top of each other: all have the same first coordinates, and the uppermost line is the sum.
    Stacked,
    /// Groups of bars from zero, one group for each of these categories.
    Bars(Vec<String>),
}

/// A level of the vertical axis, such as a reservation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Level {
    pub name: String,
    pub y: f64,
}

/// A band between two levels, such as from a reservation to a limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Zone {
    pub low: f64,
    pub high: f64,
}

/// The pixels and values of the area in which a chart has its lines: a point can be added to a chart that was drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Area {
    /// Pixels of the left, right, top and bottom edge.
    pub edges: (i32, i32, i32, i32),
    /// Values at the left and right edge.
    pub x: (f64, f64),
    /// Value at the top; zero is at the bottom.
    pub y_most: f64,
}

/// A chart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    pub title: String,
    /// Label of the horizontal axis, with its unit.
    pub x: String,
    /// Label of the vertical axis, with its unit.
    pub y: String,
    pub shape: Shape,
    /// Series.
    pub lines: Vec<Line>,
    /// Reservations and limits of a chart of lines.
    #[serde(default)]
    pub levels: Vec<Level>,
    /// Shaded bands of a chart of lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<Zone>,
    /// Moments at which something changed. They have the numbers 1, 2 and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<f64>,
}

/// A label in the right margin.
struct Label<'a> {
    text: &'a str,
    colour: RGBColor,
    /// Height of what it names, in pixels.
    at: i32,
}

impl Chart {
    /// Lines over time or another quantity.
    #[must_use]
    pub fn lines(title: &str, x: &str, y: &str, lines: Vec<Line>) -> Self {
        let [title, x, y] = [title, x, y].map(str::to_owned);
        let (levels, zones, marks) = (Vec::new(), Vec::new(), Vec::new());
        Chart { title, x, y, shape: Shape::Lines, lines, levels, zones, marks }
    }

    /// Areas on top of each other over time or another quantity.
    #[must_use]
    pub fn stacked(title: &str, x: &str, y: &str, lines: Vec<Line>) -> Self {
        Chart { shape: Shape::Stacked, ..Self::lines(title, x, y, lines) }
    }

    /// Groups of bars.
    #[must_use]
    pub fn bars(title: &str, y: &str, categories: &[&str], lines: Vec<Line>) -> Self {
        let categories = categories.iter().map(ToString::to_string).collect();
        Chart { shape: Shape::Bars(categories), ..Self::lines(title, "", y, lines) }
    }

    /// Adds a level, such as a reservation.
    #[must_use]
    pub fn level(mut self, name: impl Into<String>, y: f64) -> Self {
        self.levels.push(Level { name: name.into(), y });
        self
    }

    /// Adds a shaded band.
    #[must_use]
    pub fn zone(mut self, low: f64, high: f64) -> Self {
        self.zones.push(Zone { low, high });
        self
    }

    /// Adds a moment at which something changed.
    #[must_use]
    pub fn mark(mut self, x: f64) -> Self {
        self.marks.push(x);
        self
    }

    /// As a whole `<svg>` element on white.
    #[must_use]
    pub fn svg(&self) -> String {
        self.drawn(true).0
    }

    /// As an `<svg>` element of a page: it has no background, and its text and axes have the colour of the page's text.
    #[must_use]
    pub fn inline_svg(&self) -> String {
        self.inline_svg_in_area().0
    }

    /// The same, with the area of its lines.
    #[must_use]
    pub fn inline_svg_in_area(&self) -> (String, Area) {
        let (svg, area) = self.drawn(false);
        (inline(&svg), area)
    }

    fn drawn(&self, background: bool) -> (String, Area) {
        let mut out = String::new();
        // Writing into memory does not fail, nor does text of a stated size.
        let area = self.draw(SVGBackend::with_string(&mut out, SIZE), background).expect("drawing into memory");
        (out, area)
    }

    fn draw<'b>(&self, backend: SVGBackend<'b>, background: bool) -> Drawn<'b, Area> {
        let area = backend.into_drawing_area();
        if background {
            area.fill(&WHITE)?;
        }
        let is_bars = matches!(self.shape, Shape::Bars(_));
        let ((x_least, x_most), y_most) = (self.x_range(), self.y_most());
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, TITLE)
            .margin(MARGIN)
            .margin_top(if is_bars || !self.marks.is_empty() { MARGIN + LEGEND as u32 } else { MARGIN })
            // The last number of the axis extends to the right.
            .margin_right(if is_bars { 28 } else { self.label_width() })
            .x_label_area_size(38)
            .y_label_area_size(62)
            .build_cartesian_2d(x_least..x_most, 0.0..y_most)?;
        let mut mesh = chart.configure_mesh();
        let category = |at: &f64| self.category(*at);
        if is_bars {
            mesh.disable_x_mesh().x_label_formatter(&category).x_labels(self.categories() * 2 + 1);
        } else {
            mesh.x_label_formatter(&number);
        }
        // Grey lines are visible on white and on black.
        mesh.bold_line_style(RGBColor(128, 128, 128).mix(0.25)).light_line_style(WHITE.mix(0.0));
        mesh.label_style(FONT).axis_desc_style(FONT);
        mesh.y_label_formatter(&number).x_desc(&self.x).y_desc(&self.y).draw()?;
        if is_bars {
            self.draw_bars(&area, &mut chart)?;
        } else {
            self.draw_below(&area, &mut chart, (x_least, x_most))?;
            self.draw_lines(&area, &mut chart, (x_least, x_most))?;
        }
        let ((left, top), (right, bottom)) =
            (chart.backend_coord(&(x_least, y_most)), chart.backend_coord(&(x_most, 0.0)));
        area.present()?;
        Ok(Area { edges: (left, right, top, bottom), x: (x_least, x_most), y_most })
    }

    /// Draws what lines are drawn over: bands, and moments with their numbers.
    fn draw_below<'b>(
        &self,
        area: &DrawingArea<SVGBackend<'b>, Shift>,
        chart: &mut Plane<'_, 'b>,
        (x_least, x_most): (f64, f64),
    ) -> Drawn<'b> {
        let y_most = self.y_most();
        for Zone { low, high } in &self.zones {
            let shade = COLOURS[0].mix(0.12).filled();
            let corners = [(x_least, *low), (x_most, high.min(y_most))];
            chart.draw_series([Rectangle::new(corners, shade)])?;
        }
        for (number, x) in (1..).zip(&self.marks).filter(|(_, x)| (x_least..=x_most).contains(x)) {
            let upright = [(*x, 0.0), (*x, y_most)];
            chart.draw_series(DashedLineSeries::new(upright, 2, 3, COLOURS[1].stroke_width(1)))?;
            let (at, top) = chart.backend_coord(&upright[1]);
            area.draw(&text(&number.to_string(), (at - 3, top - LABEL.0 / 2)))?;
        }
        Ok(())
    }

    /// Draws areas on top of each other, the uppermost first.
    fn draw_stacked<'b>(&self, chart: &mut Plane<'_, 'b>) -> Drawn<'b> {
        for index in (0..self.lines.len()).rev() {
            let top = self.stacked_up_to(index);
            let below = if index == 0 { Vec::new() } else { self.stacked_up_to(index - 1) };
            let ground = top.iter().rev().map(|(x, _)| (*x, 0.0));
            let back: Vec<(f64, f64)> =
                if below.is_empty() { ground.collect() } else { below.into_iter().rev().collect() };
            let colour = COLOURS[index % COLOURS.len()].mix(0.75);
            let outline: Vec<(f64, f64)> = top.into_iter().chain(back).collect();
            chart.draw_series([Polygon::new(outline, colour.filled())])?;
        }
        Ok(())
    }

    /// The upper edge of an area: the sum of its line and of all before it.
    fn stacked_up_to(&self, index: usize) -> Vec<(f64, f64)> {
        let sum = |at: usize| self.lines[..=index].iter().filter_map(|line| line.points.get(at)).map(|(_, y)| y).sum();
        self.lines[index].points.iter().enumerate().map(|(at, (x, _))| (*x, sum(at))).collect()
    }

    /// Draws the bars, and the legend above them.
    fn draw_bars<'b>(&self, area: &DrawingArea<SVGBackend<'b>, Shift>, chart: &mut Plane<'_, 'b>) -> Drawn<'b> {
        let mut x = 80;
        for (index, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            chart.draw_series(self.bars_of(index, line).map(|bar| Rectangle::new(bar, colour.filled())))?;
            area.draw(&Rectangle::new([(x, 8), (x + 14, 16)], colour.filled()))?;
            area.draw(&text(&line.name, (x + 18, 12)))?;
            x += 34 + width_of(&line.name) as i32;
        }
        Ok(())
    }

    /// Draws lines, published values and levels, and their names in the right margin.
    fn draw_lines<'b>(
        &self,
        area: &DrawingArea<SVGBackend<'b>, Shift>,
        chart: &mut Plane<'_, 'b>,
        (x_least, x_most): (f64, f64),
    ) -> Drawn<'b> {
        let mut labels = Vec::new();
        let grey = RGBColor(128, 128, 128);
        for level in &self.levels {
            let ends = [(x_least, level.y), (x_most, level.y)];
            chart.draw_series(DashedLineSeries::new(ends, 6, 4, grey.stroke_width(1)))?;
            labels.push(Label { text: &level.name, colour: grey, at: chart.backend_coord(&ends[1]).1 });
        }
        let is_stacked = self.shape == Shape::Stacked;
        if is_stacked {
            self.draw_stacked(chart)?;
        }
        for (index, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            if is_stacked {
                if let (Some((x, top)), Some((_, own))) = (self.stacked_up_to(index).last(), line.points.last()) {
                    labels.push(Label { text: &line.name, colour, at: chart.backend_coord(&(*x, top - own / 2.0)).1 });
                }
                continue;
            }
            chart.draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?;
            chart.draw_series(line.published.iter().map(|at| Circle::new(*at, 5, colour.stroke_width(2))))?;
            if let Some(last) = line.points.last().or(line.published.last()) {
                labels.push(Label { text: &line.name, colour, at: chart.backend_coord(last).1 });
            }
        }
        let right = chart.backend_coord(&(x_most, 0.0)).0;
        let (top, bottom) = (LABEL.0, SIZE.1 as i32 - LABEL.0);
        let heights = apart(&labels.iter().map(|label| label.at).collect::<Vec<_>>(), top, bottom);
        for (label, height) in labels.iter().zip(heights) {
            area.draw(&PathElement::new(vec![(right + 1, label.at), (right + 10, height)], label.colour.mix(0.6)))?;
            area.draw(&text(label.text, (right + 13, height)))?;
        }
        if self.lines.iter().any(|line| !line.published.is_empty()) {
            area.draw(&Circle::new((80, 16), 5, grey.stroke_width(2)))?;
            area.draw(&text("the paper", (92, 16)))?;
        }
        Ok(())
    }

    /// Width of the right margin for the longest name.
    fn label_width(&self) -> u32 {
        let names = self.lines.iter().map(|line| &line.name).chain(self.levels.iter().map(|level| &level.name));
        names.map(|name| 28 + width_of(name)).max().unwrap_or(0).clamp(28, MARGIN_MAX)
    }

    fn categories(&self) -> usize {
        if let Shape::Bars(categories) = &self.shape { categories.len() } else { 0 }
    }

    /// Name of the group whose centre is at `at`.
    fn category(&self, at: f64) -> String {
        let Shape::Bars(categories) = &self.shape else { return String::new() };
        let middle = at - 0.5;
        let whole = middle.round();
        if (middle - whole).abs() > 0.01 || whole < 0.0 {
            return String::new();
        }
        categories.get(whole as usize).cloned().unwrap_or_default()
    }

    fn bars_of<'a>(&'a self, index: usize, line: &'a Line) -> impl Iterator<Item = [(f64, f64); 2]> + 'a {
        let width = 0.8 / self.lines.len().max(1) as f64;
        line.points.iter().enumerate().map(move |(category, (_, height))| {
            let left = category as f64 + 0.1 + index as f64 * width;
            [(left, 0.0), (left + width * 0.92, *height)]
        })
    }

    fn x_range(&self) -> (f64, f64) {
        if let Shape::Bars(categories) = &self.shape {
            return (0.0, categories.len().max(1) as f64);
        }
        let points = self.points().map(|(x, _)| *x);
        let (least, most) = points.fold((f64::MAX, f64::MIN), |(least, most), x| (least.min(x), most.max(x)));
        if least < most { (least, most) } else { (0.0, 1.0) }
    }

    fn y_most(&self) -> f64 {
        let levels = self.levels.iter().map(|level| level.y);
        let sums = match (&self.shape, self.lines.len().checked_sub(1)) {
            (Shape::Stacked, Some(last)) => self.stacked_up_to(last),
            _ => Vec::new(),
        };
        let points = self.points().chain(&sums).map(|(_, y)| *y);
        let most = points.chain(levels).fold(0.0, f64::max);
        if most > 0.0 { most * 1.05 } else { 1.0 }
    }

    fn points(&self) -> impl Iterator<Item = &(f64, f64)> {
        self.lines.iter().flat_map(|line| line.points.iter().chain(&line.published))
    }
}

/// An `<svg>` element of a page: text and axes have the colour of the page's text.
pub(crate) fn inline(svg: &str) -> String {
    svg.replace("\"#000000\"", "\"currentColor\"")
}

/// A label to the right of a point.
pub(crate) fn text(label: &str, at: (i32, i32)) -> Text<'static, (i32, i32), String> {
    let style = FONT.into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
    Text::new(label.to_owned(), at, style)
}

/// Approximate width of a label in pixels.
fn width_of(label: &str) -> u32 {
    label.chars().count() as u32 * LABEL.1
}

/// Returns heights of labels, each as near as possible to where it should be and none over another one. If they do not all fit between
/// `top` and `bottom`, they are nearer to each other.
fn apart(wanted: &[i32], top: i32, bottom: i32) -> Vec<i32> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|label| wanted[*label]);
    let count = wanted.len().max(2) as i32 - 1;
    let step = (LABEL.0 + 2).min((bottom - top) / count);
    let mut heights = wanted.to_vec();
    let mut least = top;
    for label in &order {
        heights[*label] = heights[*label].max(least);
        least = heights[*label] + step;
    }
    let mut most = bottom;
    for label in order.iter().rev() {
        heights[*label] = heights[*label].min(most);
        most = heights[*label] - step;
    }
    heights
}

/// A number at an axis, without trailing zeros.
fn number(at: &f64) -> String {
    let text = format!("{at:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_chart_gives_the_same_bytes() {
        let line = |name: &str| Line::new(name, (0..50).map(|x| (f64::from(x), f64::from(x * x))).collect());
        let chart = Chart::lines("Squares", "x", "y [1]", vec![line("a"), line("b")]);
        assert_eq!(chart.svg(), chart.svg());
        assert!(!chart.svg().contains("10.0\n"), "numbers without needless zeros: {}", chart.svg());
        assert!(chart.svg().matches("<polyline").count() >= 2, "a line for each series: {}", chart.svg());
    }

    #[test]
    fn labels_do_not_cover_each_other() {
        assert_eq!(apart(&[100, 50], 12, 348), [100, 50], "there is room");
        assert_eq!(apart(&[100, 101, 99], 12, 348), [116, 133, 99]);
        assert_eq!(apart(&[348, 348, 0], 12, 348), [331, 348, 12], "moved into the chart");
        let crowded = apart(&[100; 60], 12, 348);
        assert!(crowded.windows(2).all(|pair| pair[1] - pair[0] == 5), "{crowded:?}");
        assert_eq!(apart(&[], 12, 348), [0; 0]);
    }

    #[test]
    fn published_values_and_levels_are_drawn_and_named() {
        let line = Line::new("VM1", vec![(0.0, 1.0), (10.0, 2.0)]).published(vec![(5.0, 3.0)]);
        let chart = Chart::lines("t", "x", "y", vec![line]).level("limit", 4.0);
        let svg = chart.svg();
        assert_eq!(svg.matches("<circle").count(), 2, "the value and its key: {svg}");
        for name in ["VM1", "limit", "the paper"] {
            assert!(svg.contains(name), "{name} in {svg}");
        }
        assert_eq!(chart.y_most(), 4.2, "both are within the chart");
        let (inline, plain) = (chart.inline_svg(), chart.svg());
        assert!(
            inline.contains("currentColor") && !inline.contains("#000000") && !inline.contains("#FFFFFF"),
            "{inline}"
        );
        assert!(plain.contains("#FFFFFF"), "a file may be shown on any background: {plain}");
    }

    /// Results that an earlier version stored have neither.
    #[test]
    fn charts_without_published_values_and_levels_are_read() {
        let text = r#"{"title":"t","x":"","y":"","shape":"Lines","lines":[{"name":"a","points":[]}]}"#;
        let chart: Chart = serde_json::from_str(text).unwrap();
        assert_eq!(chart, Chart::lines("t", "", "", vec![Line::new("a", vec![])]));
    }

    #[test]
    fn stacked_areas_reach_up_to_their_sum_and_are_named_in_the_middle() {
        let line = |name: &str, y: f64| Line::new(name, vec![(0.0, y), (10.0, y)]);
        let chart = Chart::stacked("t", "x", "y", vec![line("one", 10.0), line("two", 30.0)]);
        assert_eq!((chart.y_most(), chart.stacked_up_to(1)), (42.0, vec![(0.0, 40.0), (10.0, 40.0)]));
        let svg = chart.inline_svg();
        assert_eq!(svg.matches("<polygon").count(), 2, "{svg}");
        assert!(svg.contains("one") && svg.contains("two") && !svg.contains(" style="), "{svg}");
    }

    #[test]
    fn bands_and_moments_lie_below_the_lines_and_a_point_can_be_added() {
        let line = Line::new("a", vec![(0.0, 1.0), (10.0, 2.0)]);
        let chart = Chart::lines("t", "x", "y", vec![line]).zone(1.0, 100.0).mark(5.0).mark(50.0);
        let (svg, area) = chart.inline_svg_in_area();
        assert!(svg.find("<rect").unwrap() < svg.find("stroke-width=\"2\"").unwrap(), "{svg}");
        let (left, right, top, bottom) = area.edges;
        assert!(left < right && top < bottom && area.x == (0.0, 10.0) && area.y_most == 2.1, "{area:?}");
        let last = format!("{right},{}", bottom - (f64::from(bottom - top) * 2.0 / 2.1) as i32);
        let points = svg.lines().find(|line| line.contains("stroke-width=\"2\"")).unwrap();
        assert!(points.contains(&last), "{last} in {points}");
    }

    #[test]
    fn every_bar_is_drawn_and_every_group_is_named() {
        let bars = vec![Line::bars("paper", &[1.0, 2.0, 3.0]), Line::bars("here", &[1.1, 2.1, 2.9])];
        let svg = Chart::bars("Bars", "s", &["one", "two", "three"], bars).svg();
        for name in ["one", "two", "three", "paper", "here"] {
            assert!(svg.contains(name), "{name} in {svg}");
        }
        // Six bars, two symbols of the legend, and the background.
        assert_eq!(svg.matches("<rect").count(), 9, "{svg}");
    }
}
