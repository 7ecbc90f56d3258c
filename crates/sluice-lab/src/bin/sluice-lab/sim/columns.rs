//! requests.parquet: every request, in columns.

use std::fs::File;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use sluice_sim::engine::Completed;

use super::logs::{operation, phase};

/// The columns of requests.csv.
const SCHEMA: &str = "message requests {
    REQUIRED BYTE_ARRAY vm (STRING);
    REQUIRED INT32 thread (INTEGER(32, false));
    REQUIRED INT32 node (INTEGER(32, false));
    REQUIRED BYTE_ARRAY operation (STRING);
    REQUIRED INT64 offset_bytes (INTEGER(64, false));
    REQUIRED INT32 length_bytes (INTEGER(32, false));
    REQUIRED INT64 arrived_ns (INTEGER(64, false));
    REQUIRED INT64 completed_ns (INTEGER(64, false));
    REQUIRED INT64 dispatched_ns (INTEGER(64, false));
    REQUIRED BYTE_ARRAY phase (STRING);
}";
/// Number of requests collected in memory before they are written.
const GROUP: usize = 1 << 16;

/// The file while it is written.
pub(super) struct Columns {
    file: SerializedFileWriter<File>,
    names: Vec<ByteArray>,
    rows: Vec<Completed>,
}

impl Columns {
    /// Creates a writer to `file`, with the names of the VMs by number.
    pub(super) fn new<'a>(file: File, names: impl Iterator<Item = &'a str>) -> Result<Self, ParquetError> {
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let file = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
        Ok(Columns { file, names: names.map(ByteArray::from).collect(), rows: Vec::new() })
    }

    pub(super) fn completed_request(&mut self, completed_request: &Completed) -> Result<(), ParquetError> {
        self.rows.push(*completed_request);
        if self.rows.len() == GROUP { self.write() } else { Ok(()) }
    }

    /// Writes the rest and closes the file.
    pub(super) fn finish(&mut self) -> Result<(), ParquetError> {
        self.write()?;
        self.file.finish().map(drop)
    }

    fn write(&mut self) -> Result<(), ParquetError> {
        let rows = std::mem::take(&mut self.rows);
        let mut group = self.file.next_row_group()?;
        texts(&mut group, rows.iter().map(|completed_request| self.names[completed_request.vm].clone()))?;
        numbers(&mut group, rows.iter().map(|completed_request| completed_request.thread as u32))?;
        numbers(&mut group, rows.iter().map(|completed_request| completed_request.node as u32))?;
        texts(&mut group, rows.iter().map(|completed_request| operation(completed_request.kind).into()))?;
        large_numbers(&mut group, rows.iter().map(|completed_request| completed_request.offset))?;
        numbers(&mut group, rows.iter().map(|completed_request| completed_request.length))?;
        large_numbers(&mut group, rows.iter().map(|completed_request| completed_request.arrived.as_nanos()))?;
        large_numbers(&mut group, rows.iter().map(|completed_request| completed_request.completed.as_nanos()))?;
        large_numbers(&mut group, rows.iter().map(|completed_request| completed_request.dispatched.as_nanos()))?;
        texts(&mut group, rows.iter().map(|completed_request| phase(completed_request.phase).into()))?;
        group.close().map(drop)
    }
}

type Group<'a> = SerializedRowGroupWriter<'a, File>;

fn texts(group: &mut Group<'_>, values: impl Iterator<Item = ByteArray>) -> Result<(), ParquetError> {
    column::<ByteArrayType>(group, values.collect())
}

/// Parquet stores unsigned numbers in the bits of signed ones.
fn numbers(group: &mut Group<'_>, values: impl Iterator<Item = u32>) -> Result<(), ParquetError> {
    column::<Int32Type>(group, values.map(u32::cast_signed).collect())
}

fn large_numbers(group: &mut Group<'_>, values: impl Iterator<Item = u64>) -> Result<(), ParquetError> {
    column::<Int64Type>(group, values.map(u64::cast_signed).collect())
}

/// Writes the next column of a group.
fn column<T: parquet::data_type::DataType>(group: &mut Group<'_>, values: Vec<T::T>) -> Result<(), ParquetError> {
    let mut column = group.next_column()?.expect("as many are written as the schema has");
    column.typed::<T>().write_batch(&values, None, None)?;
    column.close()
}
