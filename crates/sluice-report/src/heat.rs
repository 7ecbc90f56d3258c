//! Heat maps: how many things were in each class at each time, with lines over them.

use plotters::prelude::*;

use crate::chart::{COLOURS, Drawn, FONT, MARGIN, Plane, SIZE, TITLE, inline, text};
use crate::{Level, Line};

/// Least opacity of a cell with anything in it, so that it is seen.
const FAINTEST: f64 = 0.12;
/// Right margin for the names of lines, in pixels.
const NAMES: u32 = 90;
/// Pixels between two names.
const APART: i32 = 17;

/// A heat map. Classes have equal heights, so the vertical axis is as even as their edges are.
#[derive(Debug, Clone, PartialEq)]
pub struct Heat {
    pub title: String,
    /// Labels of the axes, with their units.
    pub x: String,
    pub y: String,
    /// Upper edges of all classes but the last, which has no end.
    pub edges: Vec<f64>,
    /// Text at these edges.
    pub labels: Vec<String>,
    pub columns: Vec<Column>,
    /// Width of a column.
    pub width: f64,
    /// Ends of the horizontal axis.
    pub range: (f64, f64),
    /// Lines over the cells.
    pub lines: Vec<Line>,
    /// Lines across.
    pub levels: Vec<Level>,
}

/// The things of one time.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Left edge.
    pub x: f64,
    /// Number of things in each class.
    pub counts: Vec<u64>,
}

impl Heat {
    /// As an `<svg>` element of a page.
    #[must_use]
    pub fn inline_svg(&self) -> String {
        let mut out = String::new();
        // Writing into memory does not fail, nor does text of a stated size.
        self.draw(SVGBackend::with_string(&mut out, SIZE)).expect("drawing into memory");
        inline(&out)
    }

    fn draw<'b>(&self, backend: SVGBackend<'b>) -> Drawn<'b> {
        let area = backend.into_drawing_area();
        let (left, right) = self.range;
        let (low, high) = self.classes();
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, TITLE)
            .margin(MARGIN)
            .margin_right(NAMES)
            .x_label_area_size(38)
            .y_label_area_size(62)
            .build_cartesian_2d(left..right, low..high)?;
        let label = |at: &f64| self.label(*at);
        let mut mesh = chart.configure_mesh();
        mesh.disable_mesh().y_label_formatter(&label).y_labels((high - low) as usize + 1);
        mesh.label_style(FONT).axis_desc_style(FONT);
        mesh.x_desc(&self.x).y_desc(&self.y).draw()?;
        self.draw_cells(&mut chart)?;
        let mut names: Vec<(&str, RGBColor, i32)> = Vec::new();
        for level in &self.levels {
            let at = self.at(level.y).clamp(low, high);
            let ends = [(left, at), (right, at)];
            chart.draw_series(DashedLineSeries::new(ends, 6, 4, COLOURS[1].stroke_width(2)))?;
            names.push((&level.name, COLOURS[1], chart.backend_coord(&ends[1]).1));
        }
        for (index, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[2 + index % 2];
            let points: Vec<(f64, f64)> = line.points.iter().map(|(x, y)| (*x, self.at(*y).clamp(low, high))).collect();
            chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
            names.extend(points.last().map(|last| (line.name.as_str(), colour, chart.backend_coord(last).1)));
        }
        names.sort_by_key(|(_, _, at)| *at);
        let edge = chart.backend_coord(&(right, low)).0;
        let mut least = 0;
        for (name, colour, at) in names {
            let height = at.max(least);
            least = height + APART;
            area.draw(&PathElement::new(vec![(edge + 1, at), (edge + 10, height)], colour.mix(0.6)))?;
            area.draw(&text(name, (edge + 13, height)))?;
        }
        area.present()?;
        Ok(())
    }

    fn draw_cells<'b>(&self, chart: &mut Plane<'_, 'b>) -> Drawn<'b> {
        let most = self.columns.iter().flat_map(|column| &column.counts).copied().max().unwrap_or(0).max(1) as f64;
        for column in &self.columns {
            let cells = column.counts.iter().enumerate().filter(|(_, count)| **count > 0);
            chart.draw_series(cells.map(|(class, count)| {
                // The root shows few among many.
                let opacity = FAINTEST + (1.0 - FAINTEST) * (*count as f64 / most).sqrt();
                let corners = [(column.x, class as f64), (column.x + self.width, class as f64 + 1.0)];
                Rectangle::new(corners, COLOURS[0].mix(opacity).filled())
            }))?;
        }
        Ok(())
    }

    /// The classes that are shown: those with anything, lines or levels in them.
    fn classes(&self) -> (f64, f64) {
        let used = self.columns.iter().flat_map(|column| {
            column.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(class, _)| class as f64)
        });
        let lines = self.lines.iter().flat_map(|line| &line.points).map(|(_, y)| self.at(*y).floor());
        let levels = self.levels.iter().map(|level| self.at(level.y).floor());
        let all = used.chain(lines).chain(levels).filter(|class| *class >= 0.0);
        let (low, high) = all.fold((f64::MAX, f64::MIN), |(low, high), class| (low.min(class), high.max(class)));
        if low > high { (0.0, 1.0) } else { (low, (high + 1.0).min(self.edges.len() as f64 + 1.0).max(low + 1.0)) }
    }

    /// Where a value is on the axis: within its class as its part of it.
    fn at(&self, value: f64) -> f64 {
        let class = self.edges.iter().take_while(|edge| **edge < value).count();
        let low = if class == 0 { 0.0 } else { self.edges[class - 1] };
        match self.edges.get(class) {
            Some(high) => class as f64 + (value - low) / (high - low),
            None => class as f64 + 0.5,
        }
    }

    /// The text at an edge.
    fn label(&self, at: f64) -> String {
        let edge = at.round();
        match (at - edge).abs() < 0.01 && edge >= 1.0 {
            true => self.labels.get(edge as usize - 1).cloned().unwrap_or_default(),
            false => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heat() -> Heat {
        let column = |x: f64, counts: [u64; 4]| Column { x, counts: counts.to_vec() };
        Heat {
            title: "Latency".to_owned(),
            x: "min".to_owned(),
            y: "time".to_owned(),
            edges: vec![10.0, 20.0, 40.0],
            labels: ["10", "20", "40"].map(str::to_owned).to_vec(),
            columns: vec![column(-2.0, [0, 9, 1, 0]), column(-1.0, [0, 5, 0, 0])],
            width: 1.0,
            range: (-2.0, 0.0),
            lines: vec![Line::new("p99", vec![(-2.0, 30.0), (-1.0, 15.0)])],
            levels: vec![Level { name: "target".to_owned(), y: 25.0 }],
        }
    }

    #[test]
    fn a_value_is_in_its_class() {
        let heat = heat();
        assert_eq!([5.0, 10.0, 15.0, 30.0, 50.0].map(|value| heat.at(value)), [0.5, 1.0, 1.5, 2.5, 3.5]);
        assert_eq!(heat.classes(), (1.0, 3.0));
        assert_eq!(
            (heat.label(1.0), heat.label(1.5), heat.label(0.0)),
            ("10".to_owned(), String::new(), String::new())
        );
    }

    #[test]
    fn cells_lines_and_levels_are_drawn_and_named() {
        let svg = heat().inline_svg();
        assert_eq!(svg.matches("<rect").count(), 3, "{svg}");
        assert!(["p99", "target", "Latency", "\n20\n"].iter().all(|name| svg.contains(name)), "{svg}");
        assert!(!svg.contains(" style=") && !svg.contains("#000000"), "{svg}");
        let empty = Heat { columns: Vec::new(), lines: Vec::new(), levels: Vec::new(), ..heat() };
        assert!(empty.inline_svg().starts_with("<svg"));
    }
}
