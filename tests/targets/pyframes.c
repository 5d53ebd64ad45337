/*
 * A module for Python: blocks of malloc, and Python's own word for who asked for them.
 *
 *   mark(size)      allocates a block and never frees it; (name, file, line) of each frame at
 *                   that moment, innermost first, are added to the list `truth` as
 *                   (size, frames)
 *   call(f, x)      calls f(x) from C
 */
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdlib.h>

static PyObject *truth;

static PyObject *attribute(PyObject *of, const char *name)
{
	PyObject *found = PyObject_GetAttrString(of, name);

	Py_DECREF(of);
	return found;
}

static PyObject *describe(PyObject *frame)
{
	PyObject *code = PyObject_GetAttrString(frame, "f_code");
	PyObject *name = code ? PyObject_GetAttrString(code, "co_qualname") : NULL;
	PyObject *file = code ? PyObject_GetAttrString(code, "co_filename") : NULL;
	PyObject *line = PyObject_GetAttrString(frame, "f_lineno");

	Py_XDECREF(code);
	return Py_BuildValue("NNN", name, file, line);
}

static PyObject *mark(PyObject *self, PyObject *size)
{
	void *volatile block = malloc(PyLong_AsSize_t(size));
	PyObject *frames = PyList_New(0);
	PyObject *frame = (PyObject *)PyEval_GetFrame();

	(void)self;
	(void)block;
	Py_XINCREF(frame);
	while (frame && frame != Py_None) {
		PyObject *line = describe(frame);

		PyList_Append(frames, line);
		Py_XDECREF(line);
		frame = attribute(frame, "f_back");
	}
	Py_XDECREF(frame);
	PyList_Append(truth, Py_BuildValue("ON", size, frames));
	if (PyErr_Occurred())
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *call(PyObject *self, PyObject *arguments)
{
	PyObject *function, *argument;

	(void)self;
	if (!PyArg_ParseTuple(arguments, "OO", &function, &argument))
		return NULL;
	return PyObject_CallFunctionObjArgs(function, argument, NULL);
}

static PyMethodDef methods[] = {
	{"mark", mark, METH_O, NULL},
	{"call", call, METH_VARARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "pyframes", NULL, -1, methods,
				    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_pyframes(void)
{
	PyObject *made = PyModule_Create(&module);

	truth = PyList_New(0);
	PyModule_AddObject(made, "truth", truth);
	Py_INCREF(truth);
	return made;
}
