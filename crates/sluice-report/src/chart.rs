//! Charts, drawn by plotters; other files do not use it directly.

use plotters::prelude::*;
use serde::{Deserialize, Serialize};

/// Colours that people with colour-blindness can distinguish: \[Okabe and Ito 2008\].
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(150, 130, 20),
];
const SIZE: (u32, u32) = (760, 360);

/// A named series.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// For bars: one value per category, in order; the first coordinate is ignored.
    pub points: Vec<(f64, f64)>,
}

impl Line {
    /// A series of points.
    #[must_use]
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Line { name: name.into(), points }
    }

    /// One bar for each category.
    #[must_use]
    pub fn bars(name: impl Into<String>, heights: &[f64]) -> Self {
        Line { name: name.into(), points: heights.iter().map(|height| (0.0, *height)).collect() }
    }
}

/// Kind of a chart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Shape {
    /// Points connected by lines.
    Lines,
    /// Groups of bars from zero, one group for each of these categories.
    Bars(Vec<String>),
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
}

impl Chart {
    /// Lines over time or another quantity.
    #[must_use]
    pub fn lines(title: &str, x: &str, y: &str, lines: Vec<Line>) -> Self {
        Chart { title: title.into(), x: x.into(), y: y.into(), shape: Shape::Lines, lines }
    }

    /// Groups of bars.
    #[must_use]
    pub fn bars(title: &str, y: &str, categories: &[&str], lines: Vec<Line>) -> Self {
        let categories = categories.iter().map(ToString::to_string).collect();
        Chart { title: title.into(), x: String::new(), y: y.into(), shape: Shape::Bars(categories), lines }
    }

    /// As a whole `<svg>` element.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut out = String::new();
        // Writing into memory does not fail, nor does text of a stated size.
        self.draw(SVGBackend::with_string(&mut out, SIZE)).expect("drawing into memory");
        out
    }

    fn draw(&self, backend: SVGBackend<'_>) -> Result<(), Box<dyn std::error::Error + '_>> {
        let area = backend.into_drawing_area();
        area.fill(&WHITE)?;
        let ((x_least, x_most), y_most) = (self.x_range(), self.y_most());
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 16))
            .margin(12)
            // The last number of the axis extends to the right.
            .margin_right(28)
            .x_label_area_size(38)
            .y_label_area_size(62)
            .build_cartesian_2d(x_least..x_most, 0.0..y_most)?;
        let mut mesh = chart.configure_mesh();
        let category = |at: &f64| self.category(*at);
        if matches!(self.shape, Shape::Bars(_)) {
            mesh.disable_x_mesh().x_label_formatter(&category).x_labels(self.categories() * 2 + 1);
        }
        if let Shape::Lines = self.shape {
            mesh.x_label_formatter(&number);
        }
        mesh.y_label_formatter(&number).x_desc(&self.x).y_desc(&self.y).light_line_style(WHITE.mix(0.0)).draw()?;
        for (index, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let drawn = match self.shape {
                Shape::Lines => {
                    chart.draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?
                }
                Shape::Bars(_) => {
                    chart.draw_series(self.bars_of(index, line).map(|bar| Rectangle::new(bar, colour.filled())))?
                }
            };
            let swatch = move |(x, y)| Rectangle::new([(x, y - 4), (x + 14, y + 4)], colour.filled());
            drawn.label(&line.name).legend(swatch);
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.2))
            .draw()?;
        area.present()?;
        Ok(())
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
        let points = self.lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x);
        let (least, most) = points.fold((f64::MAX, f64::MIN), |(least, most), x| (least.min(x), most.max(x)));
        if least < most { (least, most) } else { (0.0, 1.0) }
    }

    fn y_most(&self) -> f64 {
        let most = self.lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y).fold(0.0, f64::max);
        // Room for the legend.
        if most > 0.0 { most * 1.25 } else { 1.0 }
    }
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
    fn every_bar_is_drawn_and_every_group_is_named() {
        let bars = vec![Line::bars("paper", &[1.0, 2.0, 3.0]), Line::bars("here", &[1.1, 2.1, 2.9])];
        let svg = Chart::bars("Bars", "s", &["one", "two", "three"], bars).svg();
        for name in ["one", "two", "three", "paper", "here"] {
            assert!(svg.contains(name), "{name} in {svg}");
        }
        // Six bars, two legend symbols, the background, and the legend's.
        assert!(svg.matches("<rect").count() >= 8, "{svg}");
    }
}
