/*
 * A module for Python with the mistakes that extensions make.
 *
 *   parse(text)     returns a list of the text's words, and keeps one reference too many to it
 *   encode(text)    returns the length of a copy of the text that it never frees
 */
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdlib.h>
#include <string.h>

static PyObject *parse(PyObject *self, PyObject *text)
{
	PyObject *words = PyObject_CallMethod(text, "split", NULL);

	(void)self;
	Py_XINCREF(words);
	return words;
}

__attribute__((noinline)) static char *copy_of(const char *text, Py_ssize_t size)
{
	char *copy = malloc(size + 1);

	if (copy)
		memcpy(copy, text, size + 1);
	return copy;
}

static PyObject *encode(PyObject *self, PyObject *text)
{
	Py_ssize_t size;
	const char *read = PyUnicode_AsUTF8AndSize(text, &size);
	char *copy = read ? copy_of(read, size) : NULL;

	(void)self;
	return copy ? PyLong_FromSize_t(strlen(copy)) : NULL;
}

static PyMethodDef methods[] = {
	{"parse", parse, METH_O, NULL},
	{"encode", encode, METH_O, NULL},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
	.m_base = PyModuleDef_HEAD_INIT,
	.m_name = "pyleak",
	.m_size = -1,
	.m_methods = methods,
};

PyMODINIT_FUNC PyInit_pyleak(void)
{
	return PyModule_Create(&definition);
}
