//! Conversion of values on their way into statements (`ToValue`, `Params`) and out of rows (`FromValue`),
//! borrowed both ways, so that nothing is copied that is only looked at.
//!
//! Conversions out of rows are strict: a value of another type, a text that is not UTF-8 or a number that does
//! not fit is refused, and the row it is in can be put into quarantine by the name of the column.

use rusqlite::types::{ToSqlOutput, ValueRef};

use super::Error;

/// A value as the engine has it. SQLite does not check the encoding of a text: in a damaged row it may be
/// anything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::store) enum Value<'a> {
    Null,
    Integer(i64),
    Real(f64),
    Text(&'a [u8]),
    Blob(&'a [u8]),
}

impl Value<'_> {
    pub(super) fn kind(self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Integer(_) => "an integer",
            Value::Real(_) => "a real number",
            Value::Text(_) => "a text",
            Value::Blob(_) => "a blob",
        }
    }
}

impl<'a> From<ValueRef<'a>> for Value<'a> {
    fn from(value: ValueRef<'a>) -> Value<'a> {
        match value {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(number) => Value::Integer(number),
            ValueRef::Real(number) => Value::Real(number),
            ValueRef::Text(bytes) => Value::Text(bytes),
            ValueRef::Blob(bytes) => Value::Blob(bytes),
        }
    }
}

impl<'a> From<Value<'a>> for ToSqlOutput<'a> {
    fn from(value: Value<'a>) -> ToSqlOutput<'a> {
        ToSqlOutput::Borrowed(match value {
            Value::Null => ValueRef::Null,
            Value::Integer(number) => ValueRef::Integer(number),
            Value::Real(number) => ValueRef::Real(number),
            Value::Text(bytes) => ValueRef::Text(bytes),
            Value::Blob(bytes) => ValueRef::Blob(bytes),
        })
    }
}

/// A type that can be bound to a parameter of a statement.
pub(in crate::store) trait ToValue {
    fn to_value(&self) -> Value<'_>;
}

impl<T: ToValue + ?Sized> ToValue for &T {
    fn to_value(&self) -> Value<'_> {
        (**self).to_value()
    }
}

impl<T: ToValue> ToValue for Option<T> {
    fn to_value(&self) -> Value<'_> {
        self.as_ref().map_or(Value::Null, T::to_value)
    }
}

impl ToValue for Value<'_> {
    fn to_value(&self) -> Value<'_> {
        *self
    }
}

impl ToValue for i64 {
    fn to_value(&self) -> Value<'_> {
        Value::Integer(*self)
    }
}

impl ToValue for i32 {
    fn to_value(&self) -> Value<'_> {
        Value::Integer((*self).into())
    }
}

impl ToValue for u32 {
    fn to_value(&self) -> Value<'_> {
        Value::Integer((*self).into())
    }
}

impl ToValue for bool {
    fn to_value(&self) -> Value<'_> {
        Value::Integer((*self).into())
    }
}

impl ToValue for str {
    fn to_value(&self) -> Value<'_> {
        Value::Text(self.as_bytes())
    }
}

impl ToValue for String {
    fn to_value(&self) -> Value<'_> {
        Value::Text(self.as_bytes())
    }
}

impl ToValue for Vec<u8> {
    fn to_value(&self) -> Value<'_> {
        Value::Blob(self)
    }
}

/// A type that a value can be read as; `None` when it cannot.
pub(in crate::store) trait FromValue<'a>: Sized {
    fn from_value(value: Value<'a>) -> Option<Self>;
}

impl<'a, T: FromValue<'a>> FromValue<'a> for Option<T> {
    fn from_value(value: Value<'a>) -> Option<Option<T>> {
        match value {
            Value::Null => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}

impl FromValue<'_> for i64 {
    fn from_value(value: Value<'_>) -> Option<i64> {
        match value {
            Value::Integer(number) => Some(number),
            Value::Null | Value::Real(_) | Value::Text(_) | Value::Blob(_) => None,
        }
    }
}

impl FromValue<'_> for i32 {
    fn from_value(value: Value<'_>) -> Option<i32> {
        i64::from_value(value)?.try_into().ok()
    }
}

impl FromValue<'_> for u32 {
    fn from_value(value: Value<'_>) -> Option<u32> {
        i64::from_value(value)?.try_into().ok()
    }
}

impl FromValue<'_> for bool {
    fn from_value(value: Value<'_>) -> Option<bool> {
        i64::from_value(value).map(|number| number != 0)
    }
}

impl FromValue<'_> for f64 {
    fn from_value(value: Value<'_>) -> Option<f64> {
        match value {
            Value::Real(number) => Some(number),
            Value::Integer(number) => Some(number as f64),
            Value::Null | Value::Text(_) | Value::Blob(_) => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    fn from_value(value: Value<'a>) -> Option<&'a str> {
        match value {
            Value::Text(bytes) => std::str::from_utf8(bytes).ok(),
            Value::Null | Value::Integer(_) | Value::Real(_) | Value::Blob(_) => None,
        }
    }
}

impl FromValue<'_> for String {
    fn from_value(value: Value<'_>) -> Option<String> {
        <&str>::from_value(value).map(str::to_owned)
    }
}

/// The bytes of a text as well, whatever their encoding.
impl<'a> FromValue<'a> for &'a [u8] {
    fn from_value(value: Value<'a>) -> Option<&'a [u8]> {
        match value {
            Value::Text(bytes) | Value::Blob(bytes) => Some(bytes),
            Value::Null | Value::Integer(_) | Value::Real(_) => None,
        }
    }
}

impl FromValue<'_> for Vec<u8> {
    fn from_value(value: Value<'_>) -> Option<Vec<u8>> {
        <&[u8]>::from_value(value).map(<[u8]>::to_vec)
    }
}

/// The parameters of a statement, in the order of their numbers: a tuple, or an array or a slice of one type.
pub(in crate::store) trait Params {
    fn bind_to(self, binding: &mut Binding<'_, '_>) -> Result<(), Error>;
}

/// Binds one value after the other.
pub(in crate::store) struct Binding<'s, 'db> {
    statement: &'s mut rusqlite::Statement<'db>,
    bound: usize,
}

impl<'s, 'db> Binding<'s, 'db> {
    /// Binds all of them and checks their number: SQLite would take a missing one for null and say nothing.
    pub(super) fn bind(
        statement: &'s mut rusqlite::Statement<'db>,
        params: impl Params,
    ) -> Result<(), Error> {
        let mut binding = Binding { statement, bound: 0 };
        params.bind_to(&mut binding)?;
        let (expected, bound) = (binding.statement.parameter_count(), binding.bound);
        if expected == bound {
            return Ok(());
        }
        Err(Error::Failed(format!("{bound} values for a statement with {expected}").into()))
    }

    fn push(&mut self, value: &(impl ToValue + ?Sized)) -> Result<(), Error> {
        self.bound += 1;
        let value = ToSqlOutput::from(value.to_value());
        Ok(self.statement.raw_bind_parameter(self.bound, value)?)
    }
}

impl<T: ToValue> Params for &[T] {
    fn bind_to(self, binding: &mut Binding<'_, '_>) -> Result<(), Error> {
        self.iter().try_for_each(|value| binding.push(value))
    }
}

impl<T: ToValue, const N: usize> Params for [T; N] {
    fn bind_to(self, binding: &mut Binding<'_, '_>) -> Result<(), Error> {
        self.as_slice().bind_to(binding)
    }
}

impl Params for () {
    fn bind_to(self, _binding: &mut Binding<'_, '_>) -> Result<(), Error> {
        Ok(())
    }
}

macro_rules! tuples {
    ($($first:ident)?) => {};
    ($first:ident $($rest:ident)+) => {
        impl<$first: ToValue, $($rest: ToValue),+> Params for ($first, $($rest),+) {
            #[expect(non_snake_case, reason = "a value is named like its type")]
            fn bind_to(self, binding: &mut Binding<'_, '_>) -> Result<(), Error> {
                let ($first, $($rest),+) = self;
                binding.push(&$first)?;
                $(binding.push(&$rest)?;)+
                Ok(())
            }
        }
        tuples!($($rest)+);
    };
}

tuples!(A B C D E F G H I J K L M);
