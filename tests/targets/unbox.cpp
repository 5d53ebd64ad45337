// A module for Python that unboxes a string for each call of an operator, and frees none.
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <string>

namespace {

[[gnu::noinline]] std::string *unbox(PyObject *text)
{
	Py_ssize_t size;
	const char *read = PyUnicode_AsUTF8AndSize(text, &size);
	return read ? new std::string(read, size) : nullptr;
}

// run(operator, tokens): the sum of the tokens, as a model would compute it.
PyObject *run(PyObject *, PyObject *arguments)
{
	PyObject *name, *tokens;
	if (!PyArg_ParseTuple(arguments, "OO", &name, &tokens))
		return nullptr;
	std::string *op = unbox(name);  // "owned by the caller", who does not know
	if (!op)
		return nullptr;
	long sum = static_cast<long>(op->size());
	for (Py_ssize_t n = 0; n < PyList_Size(tokens); n++)
		sum += PyLong_AsLong(PyList_GetItem(tokens, n));
	return PyLong_FromLong(sum);
}

PyMethodDef methods[] = {{"run", run, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {
	PyModuleDef_HEAD_INIT, "unbox", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC PyInit_unbox(void)
{
	return PyModule_Create(&definition);
}
